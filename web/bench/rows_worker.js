// Milliseconds of the champion's passes by rows and threads, on a real bundle, interleaved: every round runs each once.
//
// Opened by ?bundle=URL&threads=1,2&rounds=N&start=P. Answers {rows: [{threads, program, rows, times}], reasons}. Does not
// know kernels. The KV before `start` is zeros: the work of attention does not depend on its values.

import { loadBundle } from "../worker/load.js";

/** @typedef {{threads: number, program: string, rows: number, times: number[]}} Row */

/** @param {string} planText @returns {{model: any, programs: [string, number][]}} passes worth timing, with their rows */
function passes(planText) {
  const plan = JSON.parse(planText);
  const [model] = plan.models;
  const verify = model.widths.map((/** @type {number} */ width) => [`target.verify_${width}`, width]);
  return { model, programs: [...verify, ["target.prefill", model.prefill_width]] };
}

/** @param {import("../executor/types.js").Executor} executor @param {any} model @param {string} program @param {number} rows @param {number} start */
async function pass(executor, model, program, rows, start) {
  const { ms } = await executor.submit({
    kind: "verify",
    writes: [
      ["tokens", start, Array.from({ length: rows }, (_, i) => (17 * i + 3) % model.vocab_size)],
      ["target.page_table", 0, Array.from({ length: model.num_pages }, (_, page) => page)],
      ["target.args", 0, [start, rows, 0, 0]],
    ],
    calls: [program],
    reads: [],
  });
  return ms[0];
}

/** @param {URLSearchParams} query */
async function run(query) {
  const threads = (query.get("threads") ?? "1").split(",").map(Number);
  const start = Number(query.get("start") ?? 200);
  const url = new URL(query.get("bundle") ?? "/bundle/", location.origin).href;
  const loaded = [];
  for (const wanted of threads) {
    loaded.push(await loadBundle(url, { backend: "wasm", threads: wanted }, () => {}));
  }
  const { model, programs } = passes(loaded[0].planText);
  /** @type {Row[]} */
  const rows = [];
  for (const [program, width] of programs) {
    for (const wanted of threads) rows.push({ threads: wanted, program, rows: width, times: [] });
  }
  const rounds = Number(query.get("rounds") ?? 15);
  for (let round = -1; round < rounds; round++) {
    for (const row of rows) {
      const { executor } = loaded[threads.indexOf(row.threads)];
      const ms = await pass(executor, model, row.program, row.rows, start);
      if (round >= 0) row.times.push(ms); // the first round warms up
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
  }
  const devices = loaded.map(({ executor }) => executor.info);
  for (const { executor } of loaded) executor.close();
  return { devices, rows };
}

self.onmessage = async (/** @type {MessageEvent<string>} */ { data }) => {
  try {
    self.postMessage(await run(new URLSearchParams(data)));
  } catch (error) {
    self.postMessage({ error: String(error) });
  }
};
