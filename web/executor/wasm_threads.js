// How many threads a WASM executor gets, and the helpers' start and end.
//
// Does not know: kernels, programs' meaning. Invariants: fewer threads than wanted are told with the reason; a helper
// that does not start leaves one thread, never a load that hangs.

import { DeviceFault, RequestError, withTimeout } from "./faults.js";

/** @typedef {import("./wasm_helper.js").Start} Start */
/** @typedef {{threads: number, reason: string}} Threads reason: why not more, or "" */

const DEFAULT_THREADS = 4; // at most, where nobody asks: small models gain little beyond
const MAX_THREADS = 32;
const START_MS = 30000; // a busy machine may take seconds

/** @param {unknown} wanted a number of threads, or undefined @returns {Threads} */
export function chooseThreads(wanted) {
  if (wanted !== undefined && !(Number.isInteger(wanted) && Number(wanted) >= 1 && Number(wanted) <= MAX_THREADS)) {
    throw new RequestError(`threads is ${wanted}`, "threads", `Give a whole number from 1 to ${MAX_THREADS}`);
  }
  const threads = Number(wanted ?? Math.min(globalThis.navigator?.hardwareConcurrency ?? 1, DEFAULT_THREADS));
  if (threads === 1) return { threads, reason: "" };
  if (typeof Worker === "undefined") return { threads: 1, reason: "there are no workers here" };
  if (globalThis.crossOriginIsolated !== true) {
    return { threads: 1, reason: "the page is not cross-origin isolated (no COOP and COEP headers)" };
  }
  return { threads, reason: "" };
}

/** One helper, working. @param {Start} start @returns {{worker: Worker, ready: Promise<void>}} */
function startHelper(start) {
  const worker = new Worker(new URL("./wasm_helper.js", import.meta.url), { type: "module", name: "specdec-helper" });
  const ready = new Promise((/** @type {(value: void) => void} */ resolve, reject) => {
    worker.onmessage = () => resolve();
    worker.onerror = (event) => {
      event.preventDefault();
      reject(new DeviceFault(event.message || "its script did not load", "WASM threads"));
    };
  });
  worker.postMessage(start);
  return { worker, ready };
}

/**
 * All helpers, or none and the reason.
 * @param {Start[]} starts
 * @returns {Promise<{workers: Worker[], reason: string}>}
 */
export async function startHelpers(starts) {
  /** @type {Worker[]} */
  const workers = [];
  try {
    const waits = starts.map((start) => {
      const { worker, ready } = startHelper(start);
      workers.push(worker);
      return ready;
    });
    const late = () => new DeviceFault(`no answer within ${START_MS / 1000} s`, "WASM threads");
    await withTimeout(Promise.all(waits), START_MS, late);
    return { workers, reason: "" };
  } catch (error) {
    for (const worker of workers) worker.terminate();
    return { workers: [], reason: `a helper thread did not start: ${/** @type {Error} */ (error).message}` };
  }
}
