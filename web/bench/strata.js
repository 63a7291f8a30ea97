// Every prompt with every configuration, in turns in this one page: plain and speculative runs side by side, all ids compared.
//
// Opened with [?config=URL][&limit=turns a stratum][&tokens=most a run][&seconds=most in all][&runs=JSON, in place of its own]; the configuration is what
// `specdec-bench strata` packs (compiler/specdec_tools/strata_matrix.py), or window.strataConfig where a driver has put it. The outcome
// is window.benchResult and goes to POST /result, a line a turn to POST /log. It holds measurements only: the tables
// are Python's. Does not know options of a run but drafter, k and schedule (which wants costs): it hands all of them on. Invariants: times are
// of this page's clock, from the call; a configuration's place in the order changes from turn to turn; the first difference of ids ends the
// run, with what was measured and the error; a run that was stopped says "partial".

import { asSpecdecError, ContractError } from "../executor/faults.js";
import { Client } from "../page/client.js";
import { log, report } from "./outcome.js";

/** @typedef {{id: string, stratum: string, prompt_ids: number[], max_tokens: number}} Prompt */
/** @typedef {{name: string, options: Record<string, any>}} Configuration */
/** @typedef {{bundle: string, load: Record<string, any>, pairs: number, prompts: Prompt[], configs: Configuration[]}} Config */
/** @typedef {{ids: number[], record: Record<string, any>}} Run */

/** What a driver watches and may stop. */
const watched = { done: 0, total: 0, stop: false, outcome: /** @type {Record<string, any> | null} */ (null) };
/** @type {any} */ (window).strata = watched;

/** Counts by position in a round: drafts offered, judged and accepted. Twin of Tally in strata_native.py. */
class Tally {
  constructor() {
    this.drafted = /** @type {number[]} */ ([]);
    this.evaluated = /** @type {number[]} */ ([]);
    this.accepted = /** @type {number[]} */ ([]);
  }

  /** @param {number} numIds @param {number} drafted @param {number} accepted */
  add(numIds, drafted, accepted) {
    const judged = accepted + (accepted < drafted && numIds > accepted ? 1 : 0); // an end cuts what comes after it
    for (const [list, count] of /** @type {[number[], number][]} */ ([[this.drafted, drafted], [this.evaluated, judged], [this.accepted, accepted]])) {
      for (let i = 0; i < count; i++) list[i] = (list[i] ?? 0) + 1;
    }
  }
}

/** The turns: strata side by side, so that a run that is stopped has something of each. @param {Config} config @param {number} pairs */
function turnsOf(config, pairs) {
  /** @type {Map<string, Prompt[]>} */
  const strata = new Map();
  for (const prompt of config.prompts) strata.set(prompt.stratum, [...(strata.get(prompt.stratum) ?? []), prompt]);
  const turns = [];
  for (let i = 0; i < pairs; i++) {
    for (const prompts of strata.values()) turns.push(prompts[i % prompts.length]);
  }
  return turns;
}

/** One configuration's place changes, and its neighbours on either side do. @template T @param {T[]} all @param {number} turn @returns {T[]} */
function ordered(all, turn) {
  const from = (turn >> 1) % all.length;
  const turned = [...all.slice(from), ...all.slice(0, from)];
  return turn % 2 ? turned.reverse() : turned;
}

/** @param {Client} client @param {Prompt} prompt @param {Configuration} configuration @param {number} tokens @returns {Promise<Run>} */
async function measure(client, prompt, { name, options }, tokens) {
  const request = { prompt_ids: prompt.prompt_ids, max_tokens: Math.min(tokens, prompt.max_tokens), ...options };
  const tally = new Tally();
  let first = 0;
  let firstMs = 0;
  const began = performance.now();
  const result = await client.generate(request, (_text, { ids, num_drafted, num_accepted }) => {
    if (ids.length === 0) return; // the last bytes of the text
    if (first === 0) {
      firstMs = performance.now() - began;
      first = ids.length;
    }
    tally.add(ids.length, num_drafted, num_accepted);
  });
  const totalMs = performance.now() - began;
  const { prefill, draft, verify } = result.timing_ms;
  return {
    ids: result.token_ids,
    record: {
      prompt: prompt.id,
      config: name,
      tokens: result.token_ids.length,
      finish: result.finish_reason,
      first,
      first_ms: firstMs,
      total_ms: totalMs,
      prefill_ms: prefill,
      draft_ms: draft,
      verify_ms: verify,
      seed: result.seed,
      speculation: result.speculation,
      ...tally,
    },
  };
}

const CHOOSE_NOTHING = new Set(["drafter", "k", "schedule", "rounds", "plain_steps", "mode", "max_tokens"]);

/**
 * By name: the configuration whose ids it must have, the first that chooses tokens as it does. Modes other than coupled promise none.
 * Twin of references in strata_matrix.py. @param {Configuration[]} configs @returns {Map<string, string>}
 */
function references(configs) {
  const first = new Map();
  const found = new Map();
  for (const { name, options } of configs) {
    const key = JSON.stringify(Object.entries(options).filter(([option]) => !CHOOSE_NOTHING.has(option)).sort());
    if (!first.has(key)) first.set(key, name);
    if ((options.mode ?? "coupled") === "coupled") found.set(name, first.get(key));
  }
  return found;
}

/** @param {string} prompt @param {string} name @param {number[]} ids @param {string} plain @param {number[]} expected */
function checkEqual(prompt, name, ids, plain, expected) {
  const at = ids.findIndex((id, i) => id !== expected[i]);
  if (at < 0 && ids.length === expected.length) return;
  const place = at < 0 ? Math.min(ids.length, expected.length) : at;
  throw new ContractError(`${prompt}: "${name}" differs from "${plain}" at position ${place} of the answer`, "strata", "This is a bug in specdec: please report it");
}

/** One line to the runner, where one listens: before the next run begins, so that none is disturbed. @param {string} text */
async function tell(text) {
  log(text);
  await fetch("/log", { method: "POST", body: text, signal: AbortSignal.timeout(2000) }).catch(() => {});
}

/** @param {Client} client @param {Config} config @param {Prompt[]} turns @param {number} tokens @param {number} seconds @param {Record<string, any>} outcome */
async function measureAll(client, config, turns, tokens, seconds, outcome) {
  const began = performance.now();
  const expected = references(config.configs);
  for (const configuration of config.configs) await measure(client, turns[0], configuration, 8); // warm: not measured
  for (const [turn, prompt] of turns.entries()) {
    if (watched.stop || performance.now() - began > seconds * 1000) return;
    /** @type {Map<string, Run>} */
    const runs = new Map();
    for (const configuration of ordered(config.configs, turn)) {
      runs.set(configuration.name, await measure(client, prompt, configuration, tokens));
    }
    const idsOf = (/** @type {string} */ name) => /** @type {Run} */ (runs.get(name)).ids;
    for (const [name, plain] of expected) checkEqual(prompt.id, name, idsOf(name), plain, idsOf(plain));
    for (const { record } of runs.values()) outcome.runs.push({ turn, ...record });
    watched.done = turn + 1;
    await tell(`turn ${turn + 1} of ${turns.length}, ${prompt.id}: ${idsOf(config.configs[0].name).length} ids, ${Math.round((performance.now() - began) / 1000)} s`);
  }
  outcome.partial = false;
}

/** @param {URLSearchParams} query */
async function run(query) {
  /** @type {Config} */
  const config = /** @type {any} */ (window).strataConfig ?? (await (await fetch(query.get("config") ?? "../strata.json")).json());
  const runs = query.get("runs");
  if (runs) config.configs = JSON.parse(runs);
  const client = new Client();
  const costs = config.configs.some(({ options }) => (options.schedule ?? "fixed") !== "fixed"); // measured before the first run, then told
  const loaded = await client.load(new URL(config.bundle, location.href).href, { costs, ...config.load });
  const pairs = Number(query.get("limit") ?? config.pairs);
  const tokens = Number(query.get("tokens") ?? Infinity);
  const turns = turnsOf(config, pairs);
  watched.total = turns.length;
  const { bundle: _bundle, load: _load, prompts, ...told } = config;
  const outcome = {
    ...told,
    pairs,
    tokens: Number.isFinite(tokens) ? tokens : null,
    browser: navigator.userAgent,
    device: loaded.device,
    load_ms: loaded.load_ms,
    memory: loaded.memory,
    costs: loaded.costs ?? null, // of this device's passes, where the runtime measures them
    prompts: prompts.map(({ id, stratum, prompt_ids }) => ({ id, stratum, prompt_tokens: prompt_ids.length })),
    runs: /** @type {object[]} */ ([]),
    partial: true,
  };
  watched.outcome = outcome;
  try {
    await measureAll(client, config, turns, tokens, Number(query.get("seconds") ?? Infinity), outcome);
  } catch (error) {
    return { ...outcome, ...failed(error) };
  }
  return outcome;
}

/** @param {unknown} error */
function failed(error) {
  return { partial: true, error: asSpecdecError(error, "strata").toJson() };
}

await report(run, failed);
