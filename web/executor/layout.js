// What both executors ask of a plan target: tensors by name, bytes by lifetime, host access to 4-byte numbers.
//
// Does not know: where the bytes live.

import { ContractError } from "./faults.js";

/** @typedef {import("./types.js").PlanTarget} PlanTarget */
/** @typedef {import("./types.js").PlanTensor} PlanTensor */

/**
 * @typedef {{
 *   name: string, buffer: number, offset: number, elements: number, bytes: number, isFloat: boolean, isHost: boolean
 * }} HostTensor
 */

/** @type {Record<string, number>} */
const DTYPE_BYTES = { int8: 1, uint8: 1, int16: 2, int32: 4, uint32: 4, float32: 4 };

/** @param {PlanTensor} tensor @returns {number} */
export function tensorBytes(tensor) {
  return tensor.shape.reduce((product, extent) => product * extent, 1) * DTYPE_BYTES[tensor.dtype];
}

/** @param {number} bytes @param {number} step @returns {number} */
export function alignUp(bytes, step) {
  return Math.ceil(bytes / step) * step;
}

/** @param {PlanTarget} target @returns {Map<string, HostTensor>} */
export function hostTensors(target) {
  return new Map(
    target.tensors.map(({ name, buffer, offset, dtype, shape }) => {
      const elements = shape.reduce((product, extent) => product * extent, 1);
      // ids, counts, flags, scores, and the words of masks: all that crosses
      const isWords = dtype === "uint32" && target.buffers[buffer].lifetime === "state";
      const isHost = dtype === "int32" || dtype === "float32" || isWords;
      const bytes = elements * DTYPE_BYTES[dtype];
      return [name, { name, buffer, offset, elements, bytes, isFloat: dtype === "float32", isHost }];
    }),
  );
}

/**
 * The tensor of a read or a write, its range checked: a wrong one is a bug of the decode core.
 * @param {Map<string, HostTensor>} tensors @param {string} name @param {number} offset @param {number} count
 * @returns {HostTensor}
 */
export function hostRange(tensors, name, offset, count) {
  const tensor = tensors.get(name);
  if (!tensor) throw new ContractError(`there is no tensor "${name}"`, "submit");
  if (!tensor.isHost) throw new ContractError(`the host may not touch ${name}`, "submit");
  if (!(offset >= 0 && count >= 0 && offset + count <= tensor.elements)) {
    throw new ContractError(`elements ${offset}..${offset + count} lie outside ${name} [${tensor.elements}]`, "submit");
  }
  return tensor;
}

/**
 * Numbers of a readback; JSON has no NaN, so one that is not finite crosses as null.
 * @param {Int32Array | Float32Array} values
 * @returns {number[]}
 */
export function toNumbers(values) {
  if (values instanceof Int32Array) return Array.from(values);
  return Array.from(values, (value) => (Number.isFinite(value) ? value : /** @type {any} */ (null)));
}

/**
 * The memory that a target takes, counted before anything is loaded.
 * @param {PlanTarget} target
 * @returns {{weight: number, kv: number, state: number, scratch: number, total: number}}
 */
export function memoryPlan(target) {
  const plan = { weight: 0, kv: 0, state: 0, scratch: 0, total: 0 };
  for (const buffer of target.buffers) {
    plan[buffer.lifetime] += buffer.bytes;
    plan.total += buffer.bytes;
  }
  return plan;
}

/** @param {number} bytes @returns {string} */
export function megabytes(bytes) {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}
