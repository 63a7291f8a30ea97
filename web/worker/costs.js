// What passes cost on this device: runs the submits that Python names, and brings it their times.
//
// Does not know: what a cost is made of (specdec_runtime/schedule/measure.py does), requests. The twin of `measure` in
// compiler/specdec_tools/native_run.py. Invariants: bounded: no further repetition once LIMIT_MS are spent; an answer that was
// cut short shows no costs.

import { errorFromJson } from "../executor/faults.js";

/** @typedef {import("../executor/types.js").Executor} Executor */
/** @typedef {import("../executor/types.js").Submit} Submit */
/** @typedef {import("./python.js").Engine} Engine */
/** @typedef {import("./pump.js").Pump} Pump */

const REPEATS = [2, 4]; // at least, for the first runs of WASM code are not those that count; at most
const LIMIT_MS = { calls: 600, submits: 100 }; // a CPU's passes are slow; a GPU's many

/** @param {Executor} executor @param {Submit[]} submits @param {number} limitMs @returns {Promise<number[]>} the least time of each */
async function leastTimes(executor, submits, limitMs) {
  /** @type {number[]} */
  const least = submits.map(() => Infinity);
  const start = performance.now();
  for (let repeat = 0; repeat < REPEATS[1] && (repeat < REPEATS[0] || performance.now() - start < limitMs); repeat++) {
    for (const [i, submit] of submits.entries()) {
      const { ms } = await executor.submit(submit);
      least[i] = Math.min(least[i], ms.reduce((sum, one) => sum + one, 0));
    }
  }
  return least;
}

/**
 * Python's schedules know this device's costs after it. On a software adapter they are assumed: measuring would take minutes.
 * @param {Engine} engine @param {Executor} executor @param {Pump} pump
 * @returns {Promise<Record<string, any> | null>} what Python says of its schedules; null: cancelled, nothing is known
 */
export async function measureCosts(engine, executor, pump) {
  if (executor.timing === "none") return engine.state;
  const split = executor.timing === "calls";
  const { submits, request, error } = JSON.parse(engine.probes(split));
  if (error) throw errorFromJson(error);
  const probe_ms = await leastTimes(executor, submits, LIMIT_MS[executor.timing]);
  const { result, clock } = await pump.run(request, { onEmit: () => {}, onProgress: () => {} });
  if (result.finish_reason === "cancelled") return null;
  const cycles = Math.max(1, result.speculation.num_cycles);
  const { decode, verify } = clock.timing(0);
  const times = { split, probe_ms, cycle_ms: Number(decode) / cycles, submit_ms: Number(verify) / cycles };
  const state = JSON.parse(engine.measured(JSON.stringify(times)));
  if (state.type === "error") throw errorFromJson(state.error);
  return state;
}
