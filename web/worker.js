// The worker: hears the page's messages and answers each with progress, text, and one result or error.
//
// A message in: {id, op: "load" | "generate" | "score" | "sessions" | "drop" | "memory" | "cancel", ...}. Messages out: {id, kind: "progress"
// | "text" | "result" | "error", ...}. Invariants: every message but cancel is answered by exactly one result or error; one
// request runs at a time; nothing here waits without a time limit.

import { RequestError, asSpecdecError, errorFromJson } from "./executor/faults.js";
import { OPTIONS, withDefaults } from "./request.js";
import { measureCosts } from "./worker/costs.js";
import { Matchers } from "./worker/grammar.js";
import { loadBundle } from "./worker/load.js";
import { Pump } from "./worker/pump.js";
import { PythonHost } from "./worker/python.js";

const python = new PythonHost(); // boots while the bundle downloads

/** @typedef {import("./worker/python.js").Engine} Engine */
/** @type {{text: import("./worker/text.js").BundleText, executor: any, engine: Engine, pump: Pump, measured: boolean, hasTable: boolean, schedule: string, loadMs: number} | null} */
let loaded = null;
let busy = false;
let cancelled = false; // the running request was asked to end: it may not have reached the pump yet

/** @typedef {Record<string, any>} Message */
/** @typedef {(kind: string, fields: Record<string, any>) => void} Say */

/** @param {Message} message @param {Say} say */
async function load(message, say) {
  const start = performance.now();
  loaded?.executor.close();
  loaded = null;
  const made = await loadBundle(message.url, message.options ?? {}, (progress) => say("progress", progress));
  try {
    say("progress", { stage: "python" });
    const engine = await python.engine(made.planText, made.programs, made.policyText);
    const matchers = new Matchers(made.text.map);
    const pump = new Pump(engine, made.executor, (asked) => matchers.open(asked));
    const known = message.options?.costs === true ? await measureCosts(engine, made.executor, pump) : null;
    const { schedules, schedule, costs } = known ?? engine.state;
    const loadMs = performance.now() - start;
    loaded = { text: made.text, executor: made.executor, engine, pump, measured: known !== null, hasTable: false, schedule, loadMs };
    return { ...made.report, schedules, schedule, costs, load_ms: loadMs };
  } catch (error) {
    made.executor.close();
    throw error;
  }
}

function ready() {
  if (!loaded) throw new RequestError("no bundle is loaded", "load", "Load a bundle first");
  return loaded;
}

/** @param {Message} request @returns {Record<string, any>} the options that are given, texts as ids, with a seed drawn where there is none */
function optionsOf(request) {
  const given = Object.fromEntries(OPTIONS.map((name) => [name, request[name] ?? undefined]));
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  given.seed ??= (high % 2 ** 21) * 2 ** 32 + low; // 53 bits: JSON has numbers of so many
  if (given.bad_words) given.bad_words = ready().text.bannedIds(given.bad_words);
  return given;
}

/** Python ends answers by their text: it needs to know what each token shows, once. @param {Record<string, any>} options */
function tellTokens({ stop }) {
  const { engine, text, hasTable } = ready();
  if (!stop?.length || hasTable) return;
  const said = engine.tokens(text.map.table());
  if (said !== "") throw errorFromJson(JSON.parse(said).error);
  ready().hasTable = true;
}

/** @param {Message} request @param {Say} say */
async function generate(request, say) {
  const { text, executor, engine, pump, loadMs, schedule: auto } = ready();
  const asked = withDefaults(request, { plain_steps: executor.plainSteps, rounds: executor.rounds });
  const pinned = (asked.schedule === "auto" ? auto : asked.schedule) === "fixed";
  const { max_tokens, drafter, k, plain_steps, rounds, schedule } = asked;
  const prompt_ids = text.promptIds(request);
  if (!pinned && drafter !== "off" && !ready().measured) {
    ready().measured = (await measureCosts(engine, executor, pump)) !== null;
  }
  const options = optionsOf(request);
  tellTokens(options);
  const stream = text.stream();
  let told = "";
  const onEmit = (/** @type {import("./worker/pump.js").Emit} */ emit) => {
    const pieces = emit.pieces ?? emit.ids.map((id) => stream.push(id));
    told += pieces.join("");
    const shown = emit.logprobs && { token_bytes: text.shown(emit.logprobs) };
    say("text", { text: pieces.join(""), ...emit, ...shown, pieces });
  };
  const onProgress = (/** @type {number} */ done, /** @type {number} */ total) => {
    say("progress", { stage: "prefill", done, total });
  };
  const ask = { op: "generate", prompt_ids, max_tokens, drafter, k, plain_steps, rounds, schedule, ...options };
  const { result, clock } = await pump.run(ask, { onEmit, onProgress }, cancelled);
  const whole = result.text ?? told + stream.finish();
  const rest = whole.slice(told.length);
  if (rest) say("text", { text: rest, pieces: [rest], ids: [], num_drafted: 0, num_accepted: 0 });
  const timing_ms = clock.timing(loadMs);
  return { result: { ...result, text: whole, timing_ms, device: executor.info }, stats: clock.stats };
}

/** @param {Message} request @param {Say} say */
async function score(request, say) {
  const { text, executor, pump, loadMs } = ready();
  const { score_ids, width } = request;
  const prompt_ids = text.promptIds(request);
  const onProgress = (/** @type {number} */ done, /** @type {number} */ total) => {
    say("progress", { stage: "score", done, total });
  };
  const listener = { onEmit: () => {}, onProgress };
  const ask = { op: "score", prompt_ids, score_ids, width: width ?? 1 };
  const { result, clock } = await pump.run(ask, listener);
  const timing_ms = clock.timing(loadMs);
  return { result: { prompt_ids, ...result, timing_ms, device: executor.info }, stats: clock.stats };
}

/** What is held between requests, garbage collected in Python. */
async function memory() {
  const { engine, executor } = ready();
  return { ...engine.memory(), wasm_bytes: executor.memoryBytes ?? null };
}

async function sessions() {
  return ready().engine.sessions();
}

/** @param {Message} request @returns {Promise<boolean>} was there one of that name? */
async function drop({ session }) {
  return ready().engine.dropSession(session);
}

/** @type {Record<string, (message: Message, say: Say) => Promise<any>>} */
const OPERATIONS = { load, generate, score, sessions, drop, memory };

/** @param {Message} message @param {Say} say */
async function answer(message, say) {
  const operation = OPERATIONS[message.op];
  try {
    if (!operation) throw new RequestError(`unknown operation "${message.op}"`, "worker", `Use ${Object.keys(OPERATIONS).join(", ")}`);
    if (busy) throw new RequestError("another request is running", message.op, "Wait for it, or cancel it");
    busy = true;
    cancelled = false;
    try {
      say("result", { result: await operation(message, say) });
    } finally {
      busy = false;
    }
  } catch (error) {
    say("error", { error: asSpecdecError(error, message.op).toJson() });
  }
}

self.onmessage = (/** @type {MessageEvent<Message>} */ event) => {
  const message = event.data;
  if (message.op === "cancel") {
    cancelled = true;
    loaded?.pump.cancel();
    return;
  }
  const say = (/** @type {string} */ kind, /** @type {Record<string, any>} */ fields) => {
    self.postMessage({ id: message.id, kind, ...fields });
  };
  void answer(message, say);
};
