// Greedy equality on this machine's device: every prompt plain, then several plain steps a submit, then with each drafter and k, and
// with several rounds a submit; all token ids compared.
//
// Opened with ?bundle=URL&backend=webgpu[&tokens=128][&prompts=URL]; prompts.json is [[name, text, raw], ...]. The outcome is
// window.benchResult and goes to POST /result where a runner listens. Also scores one answer at every width: equal, or it says so.

import { Client } from "../page/client.js";
import { report } from "./outcome.js";

const KS = [1, 3, 7];
const DRAFTERS = ["ngram", "model"];
const PLAIN_STEPS = [2, 4, 8];
const ROUNDS = [2, 4]; // of the draft model

/** @param {URLSearchParams} query */
async function run(query) {
  const client = new Client();
  const loaded = await client.load(query.get("bundle") ?? "bundle/", { backend: query.get("backend") ?? "webgpu" });
  const prompts = await (await fetch(query.get("prompts") ?? "prompts.json")).json();
  const tokens = Number(query.get("tokens") ?? 128);
  const result = { device: loaded.device, load_ms: loaded.load_ms, runs: 0, different: /** @type {string[]} */ ([]), rows: /** @type {object[]} */ ([]) };
  for (const [name, prompt, raw] of prompts) {
    const request = { prompt, raw, max_tokens: tokens };
    const plain = await client.generate({ ...request, drafter: "off", k: 0, plain_steps: 1 });
    const row = { name, tokens: plain.token_ids.length, plain_ms: plain.timing_ms.decode, prefill_ms: plain.timing_ms.prefill };
    const text = plain.text.slice(0, 60);
    const speeds = /** @type {Record<string, number>} */ ({});
    const variants = PLAIN_STEPS.map((plain_steps) => ({ label: `plain ${plain_steps}`, drafter: "off", k: 0, plain_steps, rounds: 1 }));
    for (const k of KS) {
      for (const drafter of DRAFTERS) variants.push({ label: `${drafter} ${k}`, drafter, k, plain_steps: 1, rounds: 1 });
      for (const rounds of ROUNDS) variants.push({ label: `model ${k} x ${rounds}`, drafter: "model", k, plain_steps: 1, rounds });
    }
    for (const { label, ...variant } of variants) {
      const fast = await client.generate({ ...request, ...variant });
      result.runs += 1;
      speeds[label] = fast.timing_ms.decode;
      if (JSON.stringify(fast.token_ids) !== JSON.stringify(plain.token_ids)) result.different.push(`${name} ${label}`);
    }
    const scores = [];
    for (const width of [1, 2, 4, 8]) {
      const scored = await client.score({ prompt, raw, score_ids: plain.token_ids.slice(0, 24), width });
      scores.push(JSON.stringify(scored.positions));
    }
    if (new Set(scores).size !== 1) result.different.push(`${name} scores`);
    result.rows.push({ ...row, text, ...speeds });
  }
  return result;
}

await report(run, (error) => ({ error: String(error), details: error instanceof Error ? error.stack : "" }));
