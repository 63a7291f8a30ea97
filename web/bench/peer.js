// Runs the sides named in ?sides=ours,transformers-q4 in turn, `rounds` times each, on the same prompt ids, and reports speeds and ratios.
//
// Opened with ?sides=A,B[&rounds=5][&tokens=64][&prompts=URL][&backend=webgpu][&threads=N][&bundle=URL][&peer=URL];
// prompts.json is [{name, prompt_ids}, ...]. The outcome is window.benchResult and goes to POST /result where a runner listens. With rounds=0
// nothing is run: window.benchSides waits for a driver that interleaves several pages. Invariant: one unmeasured run of each side and prompt
// comes first; rates are medians, ratios medians of each round's ratio; the first side named is what the others are compared with.

import { log, report } from "./outcome.js";
import { openSide } from "./sides.js";

/** @typedef {import("./sides.js").Run} Run */

/** @param {number[]} values */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** @param {Run} run */
const decodeRate = (run) => ((run.ids.length - run.first) / (run.total_ms - run.first_ms)) * 1000;

/** @param {number} promptTokens @param {Run[]} runs */
function summary(promptTokens, runs) {
  return {
    decode_tokens_per_s: median(runs.map(decodeRate)),
    prefill_tokens_per_s: median(runs.map((run) => (promptTokens / run.first_ms) * 1000)),
    ttft_ms: median(runs.map((run) => run.first_ms)),
    ids: runs[0].ids,
    runs: runs.map(({ first_ms, total_ms }) => ({ first_ms, total_ms })),
  };
}

/** How many leading ids are the same. @param {number[]} a @param {number[]} b */
function agreement(a, b) {
  let same = 0;
  while (same < a.length && a[same] === b[same]) same += 1;
  return same;
}

/** @param {URLSearchParams} query */
async function run(query) {
  const names = (query.get("sides") ?? "ours,transformers-q4").split(",");
  const rounds = Number(query.get("rounds") ?? 5);
  const tokens = Number(query.get("tokens") ?? 64);
  /** @type {Record<string, import("./sides.js").Opened>} */
  const sides = {};
  for (const name of names) {
    sides[name] = await openSide(name, query);
    log(`${name}: ${JSON.stringify(sides[name].about)}`);
  }
  const about = Object.fromEntries(names.map((name) => [name, sides[name].about]));
  const result = { browser: navigator.userAgent, about, rounds, tokens, prompts: /** @type {object[]} */ ([]) };
  /** @type {any} */ (window).benchSides = Object.fromEntries(names.map((name) => [name, sides[name].run]));
  if (rounds === 0) return result;
  const prompts = await (await fetch(query.get("prompts") ?? "/peer/prompts.json")).json();
  for (const { name: prompt, prompt_ids: ids } of prompts) {
    /** @type {Record<string, Run[]>} */
    const runs = Object.fromEntries(names.map((name) => [name, []]));
    for (let round = 0; round <= rounds; round++) {
      for (const name of names) {
        const one = await sides[name].run(ids, tokens);
        if (round > 0) runs[name].push(one);
        log(`${prompt}, round ${round}, ${name}: first ${one.first_ms.toFixed(1)} ms, all ${one.total_ms.toFixed(1)} ms, ${one.ids.length} ids`);
      }
    }
    const found = names.map((name) => summary(ids.length, runs[name]));
    const ours = runs[names[0]];
    const ratios = names.slice(1).map((name) => ({
      against: name,
      decode: median(ours.map((run, i) => decodeRate(run) / decodeRate(runs[name][i]))),
      prefill: median(ours.map((run, i) => runs[name][i].first_ms / run.first_ms)),
      equal_leading_ids: agreement(ours[0].ids, runs[name][0].ids),
    }));
    result.prompts.push({ prompt, prompt_tokens: ids.length, sides: Object.fromEntries(names.map((name, i) => [name, found[i]])), ratios });
  }
  return result;
}

await report(run);
