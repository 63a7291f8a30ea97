// Milliseconds of each call of a submit, by timestamps written at the ends of its compute pass.
//
// Does not know: what the calls are. Invariant: at most MAX_TIMED_CALLS calls of one submit; without timestamps a submit is
// timed as one.

export const MAX_TIMED_CALLS = 64;

export class CallTimer {
  /** @param {GPUDevice} device */
  constructor(device) {
    this.bytes = 16 * MAX_TIMED_CALLS;
    this.queries = device.createQuerySet({ type: "timestamp", count: 2 * MAX_TIMED_CALLS });
    const usage = GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC;
    this.resolved = device.createBuffer({ size: this.bytes, usage });
  }

  /** @param {number} call @returns {GPUComputePassDescriptor} */
  pass(call) {
    const writes = { querySet: this.queries, beginningOfPassWriteIndex: 2 * call, endOfPassWriteIndex: 2 * call + 1 };
    return { timestampWrites: writes };
  }

  /** @param {GPUCommandEncoder} encoder @param {number} calls @param {GPUBuffer} staging @param {number} at */
  resolve(encoder, calls, staging, at) {
    encoder.resolveQuerySet(this.queries, 0, 2 * calls, this.resolved, 0);
    encoder.copyBufferToBuffer(this.resolved, 0, staging, at, 16 * calls);
  }
}

/** @param {number} calls @param {ArrayBuffer} mapped @param {number} at @returns {number[]} */
export function stampedTimes(calls, mapped, at) {
  const stamps = new BigUint64Array(mapped, at, 2 * calls);
  return Array.from({ length: calls }, (_, i) => Math.max(0, Number(stamps[2 * i + 1] - stamps[2 * i])) / 1e6);
}

/** Times of a submit that is timed as one: its last call has them all. @param {number} calls @param {number} ms @returns {number[]} */
export function wholeTime(calls, ms) {
  return Array.from({ length: calls }, (_, i) => (i === calls - 1 ? ms : 0));
}
