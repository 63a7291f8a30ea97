// window.specdec: the page's side of the worker. Promises in, messages out; an answer, or a typed error, never a hang.
//
// Does not know: the screen. Invariants: requests, loads among them, run one at a time in the order in which they were asked for; a
// worker that dies, or says nothing for too long while it owes an answer, is ended and every promise it owed is rejected; the
// next load starts a new worker.

import { DeviceFault, RequestError, asSpecdecError, errorFromJson } from "../executor/faults.js";
import { checkFields } from "../request.js";
import { Completions } from "./completions.js";
import { Queue } from "./queue.js";

/** @typedef {Record<string, any>} Fields */
/** @typedef {{resolve: (value: any) => void, reject: (error: Error) => void, hear: (fields: Fields) => void}} Owed */

const WORKER_URL = new URL("../worker.js", import.meta.url);
const SILENCE_MS = { load: 240000, wasm: 180000, webgpu: 660000 }; // the worker's own limits are shorter

export class Client {
  constructor() {
    /** @type {Worker | null} */
    this.worker = null;
    /** @type {Map<number, Owed>} */
    this.owed = new Map();
    this.nextId = 1;
    this.silenceMs = SILENCE_MS.load;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** What the last load said. @type {Fields | null} */
    this.loaded = null;
    /** Counts of the pump in the last request, for benchmarks: not part of a result. @type {Fields | null} */
    this.stats = null;
    this.queue = new Queue();
    /** In the shape of OpenAI's client. */
    this.chat = { completions: new Completions(this) };
  }

  /** Starts the worker, whose Python boots at once: call early. @returns {Worker} */
  start() {
    if (this.worker) return this.worker;
    try {
      this.worker = new Worker(WORKER_URL, { type: "module", name: "specdec" });
    } catch (error) {
      throw new DeviceFault(`no worker: ${/** @type {Error} */ (error).message}`, "Worker", "Use a current browser");
    }
    this.worker.onmessage = (event) => this.hear(event.data);
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.giveUp(new DeviceFault(`the worker failed: ${event.message || "it did not start"}`, "Worker", "Load again"));
    };
    this.worker.onmessageerror = () => this.giveUp(new DeviceFault("unreadable message", "Worker", "Load again"));
    return this.worker;
  }

  /** @param {Fields} message */
  hear({ id, kind, ...fields }) {
    this.watch();
    const owed = this.owed.get(id);
    if (!owed) return;
    if (kind === "progress" || kind === "text") {
      owed.hear({ kind, ...fields });
      return;
    }
    this.owed.delete(id);
    this.watch();
    if (kind === "result") owed.resolve(fields.result);
    else owed.reject(errorFromJson(fields.error));
  }

  /** Winds the clock that ends a silent worker. */
  watch() {
    clearTimeout(this.timer);
    if (this.owed.size === 0) return;
    const seconds = this.silenceMs / 1000;
    const fault = new DeviceFault(`the worker said nothing for ${seconds} s`, "Worker", "Load again");
    this.timer = setTimeout(() => this.giveUp(fault), this.silenceMs);
  }

  /** @param {Error} error */
  giveUp(error) {
    clearTimeout(this.timer);
    this.worker?.terminate();
    this.worker = null;
    this.loaded = null;
    for (const owed of this.owed.values()) owed.reject(error);
    this.owed.clear();
  }

  /** @param {Fields} message @param {(fields: Fields) => void} hear @returns {Promise<any>} */
  ask(message, hear) {
    return new Promise((resolve, reject) => {
      const worker = this.start();
      const id = this.nextId++;
      this.owed.set(id, { resolve, reject, hear });
      try {
        worker.postMessage({ ...message, id });
        this.watch();
      } catch (error) {
        this.owed.delete(id);
        const unsent = error instanceof DOMException && error.name === "DataCloneError";
        reject(unsent ? new RequestError(error.message, "request", "Give plain JSON values") : asSpecdecError(error, "request"));
      }
    });
  }

  /**
   * @param {string} bundleUrl the folder of a bundle
   * @param {{backend?: string, timestamps?: boolean, selftest?: boolean | "full", threads?: number, costs?: boolean, dot?: "packed" | "f32", onProgress?: (progress: Fields) => void}} [options]
   * @returns {Promise<any>} device, load_ms, memory, ...
   */
  async load(bundleUrl, options = {}) {
    if (typeof bundleUrl !== "string" || bundleUrl === "") {
      throw new RequestError("no bundle is named", "bundle", "Open the page with ?bundle=URL");
    }
    return this.queue.add(() => this.open(bundleUrl, options)).done;
  }

  /** @param {string} bundleUrl @param {{onProgress?: (progress: Fields) => void}} options @returns {Promise<any>} */
  async open(bundleUrl, { onProgress = () => {}, ...rest }) {
    this.silenceMs = SILENCE_MS.load;
    this.loaded = null;
    const url = new URL(bundleUrl, document.baseURI).href;
    const loaded = await this.ask({ op: "load", url, options: rest }, onProgress);
    this.silenceMs = loaded.device.backend === "webgpu" ? SILENCE_MS.webgpu : SILENCE_MS.wasm;
    this.loaded = loaded;
    return loaded;
  }

  /** @param {Fields} message @param {(fields: Fields) => void} [hear] @returns {Promise<any>} */
  async askLoaded(message, hear = () => {}) {
    if (!this.loaded) throw new RequestError("no bundle is loaded", message.op, "Load a bundle first");
    return this.ask(message, hear);
  }

  /** @param {string} op @param {Fields} request @param {(fields: Fields) => void} hear @returns {Promise<any>} */
  async run(op, request, hear) {
    const fields = op === "generate" ? checkFields(request) : request;
    const { result, stats } = await this.askLoaded({ ...fields, op }, hear);
    this.stats = stats;
    return result;
  }

  /**
   * A request in the queue.
   * @param {string} op @param {() => Fields} request asked for when its turn comes @param {(fields: Fields) => void} hear
   * @returns {import("./queue.js").Turn<any>}
   */
  enqueue(op, request, hear) {
    return this.queue.add(async () => this.run(op, request(), hear));
  }

  /** The request never runs, or ends after the pass that is under way; over, it is left alone. @param {import("./queue.js").Turn<any>} turn */
  end(turn) {
    if (!this.queue.drop(turn) && turn.state === "running") this.cancel();
  }

  /**
   * @param {Fields} request prompt | prompt_ids | messages, raw, system, max_tokens, drafter, k, schedule, plain_steps, rounds; temperature,
   *   mode, seed, top_k, ..., stop, ignore_eos, logprobs (docs/api.md)
   * @param {(text: string, fields: Fields) => void} [onText] @param {(progress: Fields) => void} [onProgress]
   * @returns {Promise<any>} the whole result, as `specdec-run --json` prints it
   */
  generate(request, onText = () => {}, onProgress = () => {}) {
    const hear = (/** @type {Fields} */ fields) => {
      if (fields.kind === "text") onText(fields.text, fields);
      else onProgress(fields);
    };
    return this.enqueue("generate", () => request, hear).done;
  }

  /** @param {Fields} request prompt | prompt_ids, raw, system, score_ids, width @returns {Promise<any>} */
  score(request, onProgress = (/** @type {Fields} */ _fields) => {}) {
    return this.enqueue("score", () => request, onProgress).done;
  }

  /** What is held between requests: Python's objects and memory, and on the CPU the kernels' memory. @returns {Promise<any>} */
  memory() {
    return this.queue.add(() => this.askLoaded({ op: "memory" })).done;
  }

  /** What the device keeps of conversations: {sessions: [{name, tokens, pages}], pages, num_evicted} @returns {Promise<any>} */
  sessions() {
    return this.queue.add(() => this.askLoaded({ op: "sessions" })).done;
  }

  /** Gives a conversation's pages back. @param {string} session @returns {Promise<boolean>} false: there was none of that name */
  dropSession(session) {
    return this.queue.add(() => this.askLoaded({ op: "drop", session })).done;
  }

  /** Ends the running request after the pass that is under way; its promise resolves with what there is. */
  cancel() {
    this.worker?.postMessage({ op: "cancel" });
  }
}
