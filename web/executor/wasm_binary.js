// Reads from a WASM module's bytes the one thing that the JavaScript API does not tell: the limits of the memory
// it imports, so that the memory can be made before the module is instantiated; and makes that import a shared one.
//
// Why one byte is enough for threads: plain loads and stores are valid on a shared memory, and whatever orders the
// threads lies outside the module (wasm_team.js). So one module serves one thread and many.
//
// Also the feature tests: can this browser run a module that uses a given WASM proposal?

import { ArtifactError, DeviceFault } from "./faults.js";

/** @typedef {{minPages: number, maxPages: number | null, shared: boolean, flagsAt: number}} MemoryLimits */

const HAS_MAXIMUM = 1;
const SHARED = 2;

class Cursor {
  /** @param {Uint8Array} bytes @param {number} at */
  constructor(bytes, at) {
    this.bytes = bytes;
    this.at = at;
  }

  /** @returns {number} an unsigned LEB128 number */
  number() {
    let value = 0;
    for (let shift = 0; shift < 35; shift += 7) {
      const byte = this.bytes[this.at++];
      if (byte === undefined) break;
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) return value;
    }
    throw new ArtifactError("the module ends inside a number", "kernels.wasm", "Build the bundle again");
  }

  /** @returns {string} */
  name() {
    const length = this.number();
    this.at += length;
    return new TextDecoder().decode(this.bytes.subarray(this.at - length, this.at));
  }

  /** @returns {MemoryLimits} */
  limits() {
    const flagsAt = this.at;
    const flags = this.number();
    const minPages = this.number();
    return { minPages, maxPages: flags & HAS_MAXIMUM ? this.number() : null, shared: (flags & SHARED) !== 0, flagsAt };
  }
}

/** @param {Cursor} cursor @param {number} kind steps over an import's description that is not a memory */
function skipImport(cursor, kind) {
  if (kind === 0) cursor.number();
  else if (kind === 1) {
    cursor.at += 1;
    cursor.limits();
  } else if (kind === 3) cursor.at += 2;
  else throw new ArtifactError(`the module imports something of kind ${kind}`, "kernels.wasm", "Build the bundle again");
}

/**
 * The limits of the imported memory `env.memory`.
 * @param {Uint8Array} bytes
 * @returns {MemoryLimits}
 */
export function importedMemory(bytes) {
  const cursor = new Cursor(bytes, 8); // after the magic number and the version
  while (cursor.at < bytes.byteLength) {
    const section = cursor.bytes[cursor.at++];
    const end = cursor.number() + cursor.at;
    if (section !== 2) {
      cursor.at = end;
      continue;
    }
    for (let left = cursor.number(); left > 0; left--) {
      const name = `${cursor.name()}.${cursor.name()}`;
      const kind = cursor.bytes[cursor.at++];
      if (kind === 2 && name === "env.memory") return cursor.limits();
      if (kind === 2) break;
      skipImport(cursor, kind);
    }
    break;
  }
  throw new ArtifactError("the module does not import env.memory", "kernels.wasm", "Build the bundle again");
}

/**
 * The module with its memory import declared shared; null where the import names no maximum, which a shared one must.
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Uint8Array<ArrayBuffer> | null}
 */
export function withSharedMemory(bytes) {
  const { maxPages, flagsAt } = importedMemory(bytes);
  if (maxPages === null) return null;
  const patched = bytes.slice();
  patched[flagsAt] = HAS_MAXIMUM | SHARED;
  return patched;
}

/** One body for each feature, valid only where the feature exists. @type {Record<string, number[]>} */
const FEATURE_BODIES = {
  simd128: [0x41, 0, 0xfd, 0x0f, 0xfd, 0x62, 0x1a], // i32.const 0; i8x16.splat; i8x16.popcnt; drop
  "relaxed-simd": [0x41, 0, 0xfd, 0x0f, 0x41, 0, 0xfd, 0x0f, 0xfd, 0x80, 0x02, 0x1a], // i8x16.relaxed_swizzle
  "bulk-memory": [0x41, 0, 0x41, 0, 0x41, 0, 0xfc, 0x0b, 0], // memory.fill
  "nontrapping-fptoint": [0x43, 0, 0, 0, 0, 0xfc, 0, 0x1a], // f32.const 0; i32.trunc_sat_f32_s; drop
  "sign-ext": [0x41, 0, 0xc0, 0x1a], // i32.const 0; i32.extend8_s; drop
};

/** @param {string} feature @returns {boolean} whether a module of one function with that body is valid */
export function hasWasmFeature(feature) {
  const code = [0, ...FEATURE_BODIES[feature], 0x0b];
  const header = [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0];
  const sections = [1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0, 5, 3, 1, 0, 0, 10, code.length + 2, 1, code.length, ...code];
  return WebAssembly.validate(Uint8Array.from([...header, ...sections]));
}

/** @param {string[]} features throws when this browser lacks one */
export function requireWasmFeatures(features) {
  for (const feature of features) {
    if (!(feature in FEATURE_BODIES)) {
      throw new ArtifactError(`unknown WASM feature "${feature}"`, "plan.json", "Use a newer page for this bundle");
    }
    if (!hasWasmFeature(feature)) {
      throw new DeviceFault(`this browser has no WASM ${feature}`, "WebAssembly", "Use a current browser");
    }
  }
}
