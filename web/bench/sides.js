// The runtimes that are compared, each behind one function: greedy ids after given prompt ids, with the two times a person notices.
//
// Does not know what is compared with what. Invariants: every side gets ids, not text, starts from an empty KV cache and is timed by this
// page's clock, from the call to the first id and to the end. The peers' files lie in a folder beside the page: nothing is fetched elsewhere.

import { Client } from "../page/client.js";

/** @typedef {{ids: number[], first: number, first_ms: number, total_ms: number}} Run ids; how many of them came first; times from the call */
/** @typedef {(promptIds: number[], tokens: number) => Promise<Run>} Side */
/** @typedef {{about: Record<string, any>, run: Side}} Opened */

/** Notes when ids arrive. @returns {{hear: (ids: number[]) => void, done: () => Run}} */
function stopwatch() {
  const began = performance.now();
  /** @type {number[]} */
  const ids = [];
  let first = 0;
  let firstMs = 0;
  const hear = (/** @type {number[]} */ some) => {
    if (ids.length === 0 && some.length > 0) {
      firstMs = performance.now() - began;
      first = some.length;
    }
    ids.push(...some);
  };
  return { hear, done: () => ({ ids, first, first_ms: firstMs, total_ms: performance.now() - began }) };
}

/** Our own page's client. @param {URLSearchParams} query @param {string} drafter "off", or a drafter with its k: "ngram4" @returns {Promise<Opened>} */
async function openOurs(query, drafter) {
  const [, name, k] = /^([a-z]+)(\d?)$/.exec(drafter) ?? [];
  const threads = query.get("threads");
  const client = new Client();
  const options = { backend: query.get("backend") ?? "webgpu", ...(threads ? { threads: Number(threads) } : {}) };
  const loaded = await client.load(query.get("bundle") ?? "/bundle/", options);
  const run = async (/** @type {number[]} */ promptIds, /** @type {number} */ tokens) => {
    const watch = stopwatch();
    const request = { prompt_ids: promptIds, max_tokens: tokens, drafter: name, k: Number(k || 0) };
    await client.generate(request, (_text, { ids }) => watch.hear(ids));
    return watch.done();
  };
  return { about: { threads: 1, ...loaded.device, load_ms: loaded.load_ms }, run };
}

/** transformers.js on WebGPU with the model in `<peer>model/`. @param {URLSearchParams} query @param {string} dtype @returns {Promise<Opened>} */
async function openTransformers(query, dtype) {
  const peer = new URL(query.get("peer") ?? "/peer/", document.baseURI).href;
  const { AutoModelForCausalLM, Tensor, env } = await import(`${peer}transformers.min.js`);
  const wasm = `${peer}ort-wasm-simd-threaded.asyncify`;
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.useBrowserCache = false;
  env.localModelPath = peer;
  env.backends.onnx.wasm.wasmPaths = { mjs: `${wasm}.mjs`, wasm: `${wasm}.wasm` };
  const began = performance.now();
  const model = await AutoModelForCausalLM.from_pretrained("model", { device: "webgpu", dtype, local_files_only: true });
  const loadMs = performance.now() - began;
  const info = (await env.backends.onnx.webgpu.device).adapterInfo;
  const run = async (/** @type {number[]} */ promptIds, /** @type {number} */ tokens) => {
    const shape = [1, promptIds.length];
    const ids = new Tensor("int64", BigInt64Array.from(promptIds, BigInt), shape);
    const mask = new Tensor("int64", new BigInt64Array(promptIds.length).fill(1n), shape);
    const watch = stopwatch();
    let prompt = true; // the streamer is told the prompt first
    const streamer = {
      put: (/** @type {bigint[][]} */ batch) => {
        if (!prompt) watch.hear(batch[0].map(Number));
        prompt = false;
      },
      end: () => {},
    };
    await model.generate({ input_ids: ids, attention_mask: mask, max_new_tokens: tokens, do_sample: false, streamer });
    return watch.done();
  };
  const adapter = [info.vendor, info.architecture, info.device].filter(Boolean).join(" ");
  return { about: { backend: "webgpu", adapter, dtype, version: env.version, load_ms: loadMs }, run };
}

/** wllama with the GGUF file `<peer>model.gguf`. @param {URLSearchParams} query @returns {Promise<Opened>} */
async function openWllama(query) {
  const peer = new URL(query.get("peer") ?? "/peer/", document.baseURI).href;
  const { Wllama } = await import(`${peer}wllama/index.js`);
  const paths = { single: "single-thread", multi: "multi-thread" };
  const wllama = new Wllama({
    [`${paths.single}/wllama.wasm`]: `${peer}wllama/${paths.single}/wllama.wasm`,
    [`${paths.multi}/wllama.wasm`]: `${peer}wllama/${paths.multi}/wllama.wasm`,
  });
  const threads = Number(query.get("threads") ?? 1);
  const began = performance.now();
  const file = await (await fetch(`${peer}model.gguf`)).blob();
  await wllama.loadModel([file], { n_ctx: Number(query.get("context") ?? 2048), n_threads: threads });
  const loadMs = performance.now() - began;
  const run = async (/** @type {number[]} */ promptIds, /** @type {number} */ tokens) => {
    await wllama.kvClear();
    await wllama.samplingInit({ temp: 0, top_k: 1 });
    const watch = stopwatch();
    await wllama.decode(promptIds, {});
    for (let done = 0; done < tokens; done++) {
      const { token } = await wllama.samplingSample();
      watch.hear([token]);
      if (wllama.isTokenEOG(token) || done + 1 === tokens) break;
      await wllama.samplingAccept([token]);
      await wllama.decode([token], {});
    }
    return watch.done();
  };
  const about = { backend: "wasm", threads: wllama.getNumThreads(), multi: wllama.isMultithread(), load_ms: loadMs };
  return { about: { ...about, version: Wllama.getLibllamaVersion() }, run };
}

/** @param {string} name ours | ours-ngram4 | transformers-q4 | wllama @param {URLSearchParams} query @returns {Promise<Opened>} */
export async function openSide(name, query) {
  const [kind, option] = name.split("-");
  if (kind === "ours") return openOurs(query, option ?? "off");
  if (kind === "transformers") return openTransformers(query, option ?? "q4");
  if (kind === "wllama") return openWllama(query);
  throw new Error(`no side is called ${name}`);
}
