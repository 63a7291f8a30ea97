// The packed integer dot of the kernels, and the same in f32 for devices that have no such instruction.
//
// Does not know the kernels. Invariant: both forms give equal integers. Codes are at most 127 in size, so a product of two is below
// 2 ** 14 and the sum of four is exact in f32, in any order: which form runs never shows in a result.

const PACKED = "dot4I8Packed";
const FEATURE = "packed_4x8_integer_dot_product";

const IN_F32 = `fn dot_in_f32(a: u32, b: u32) -> i32 {
  let shifts = vec4<u32>(24u, 16u, 8u, 0u);
  let x = vec4<f32>(vec4<i32>(vec4<u32>(a) << shifts) >> vec4<u32>(24u));
  let y = vec4<f32>(vec4<i32>(vec4<u32>(b) << shifts) >> vec4<u32>(24u));
  return i32(dot(x, y));
}
`;

/** @typedef {"packed" | "f32"} DotKind */

/**
 * Apple's GPUs multiply floats faster than integers and have no packed dot: browsers there spell it out in integers.
 * @param {string} vendor of the adapter @param {{has: (name: string) => boolean} | undefined} languageFeatures of WGSL
 * @returns {DotKind}
 */
export function dotKind(vendor, languageFeatures) {
  return vendor === "apple" || !languageFeatures?.has(FEATURE) ? "f32" : "packed";
}

/** @param {string} code a kernel's WGSL @param {DotKind} kind @returns {string} the WGSL to compile */
export function withDot(code, kind) {
  if (kind === "packed" || !code.includes(`${PACKED}(`)) return code;
  return IN_F32 + code.replaceAll(`${PACKED}(`, "dot_in_f32(");
}
