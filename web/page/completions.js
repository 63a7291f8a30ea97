// specdec.chat.completions: answers in the shape of OpenAI's chat completions, whole or streamed.
//
// Does not know: the worker, the screen. Invariants: a stream's chunks wait for their reader in the page, and an answer has an end
// (max_tokens, the context), so a stream that nobody reads blocks nobody: the next request runs after it; leaving a stream early, or its
// signal, ends its request; what a stream has told, it tells before its error.

import { RequestError } from "../executor/faults.js";
import { extras, logprobsOf, newHead, tokenLogprobs, usageOf } from "./completions_objects.js";
import { readCompletion } from "./completions_request.js";
import { aborted } from "./queue.js";

/** @typedef {Record<string, any>} Fields */
/** @typedef {import("./client.js").Client} Client */
/** @typedef {ReturnType<typeof readCompletion>} Read */
/** @typedef {{signal?: AbortSignal, onProgress?: (progress: Fields) => void}} Options */

/** One request on its way: it knows its turn in the queue and its signal. */
class Call {
  /** @param {Client} client @param {Read} read @param {Options} options @param {(fields: Fields, logprobs: Fields[] | null) => void} onText hears each cycle */
  constructor(client, { model, request, topLogprobs }, { signal, onProgress = () => {} }, onText) {
    if (signal?.aborted) throw aborted();
    this.client = client;
    this.head = newHead();
    const hear = (/** @type {Fields} */ fields) => {
      if (signal?.aborted) return;
      if (fields.kind !== "text") onProgress(fields);
      else onText(fields, fields.logprobs ? tokenLogprobs(fields.logprobs, fields.token_bytes, topLogprobs) : null);
    };
    this.turn = client.enqueue("generate", () => this.whole(model, request), hear);
    /** The result; an abort does not wait for the pass that is under way. @type {Promise<Fields>} */
    this.result = new Promise((resolve, reject) => {
      const onAbort = () => {
        reject(aborted());
        this.cancel();
      };
      signal?.addEventListener("abort", onAbort);
      this.turn.done.then(resolve, reject).finally(() => signal?.removeEventListener("abort", onAbort));
    });
  }

  /** The request, when its turn comes and a bundle is there. @param {string | undefined} model @param {Fields} request @returns {Fields} */
  whole(model, request) {
    const { loaded } = this.client;
    if (model !== undefined && loaded && model !== loaded.model.name) {
      throw new RequestError(`the bundle is ${loaded.model.name}, not ${model}`, "model", "Give its name, or leave it out");
    }
    this.head.model = loaded?.model.name ?? "";
    return { ...request, max_tokens: request.max_tokens ?? loaded?.context };
  }

  /** The request never runs, or ends with what there is. */
  cancel() {
    this.client.end(this.turn);
  }
}

/** The answer in one piece. @param {Client} client @param {Read} read @param {Options} options @returns {Promise<Fields>} */
async function whole(client, read, options) {
  /** @type {Fields[] | null} */
  const told = read.request.logprobs ? [] : null;
  const call = new Call(client, read, options, (_fields, logprobs) => void told?.push(...(logprobs ?? [])));
  const result = await call.result;
  const message = { role: "assistant", content: result.text, refusal: null };
  const choice = { index: 0, message, logprobs: logprobsOf(told), finish_reason: result.finish_reason };
  const usage = usageOf(result.usage);
  return { ...call.head, object: "chat.completion", choices: [choice], usage, specdec: extras(result) };
}

/**
 * The chunks of an answer, as an async iterator: role, deltas, the end, and usage where it was asked for.
 * Beyond OpenAI's fields a delta's chunk has `specdec: {ids, pieces, num_drafted, num_accepted}`, the end's what the result says.
 */
export class CompletionStream {
  /** @param {Client} client @param {Read} read @param {Options} options */
  constructor(client, read, options) {
    this.includeUsage = read.includeUsage;
    /** @type {Fields[]} */
    this.chunks = [];
    this.begun = false;
    this.over = false;
    /** @type {Error | null} */
    this.error = null;
    /** Readers that wait for a chunk. @type {(() => void)[]} */
    this.readers = [];
    this.call = new Call(client, read, options, (fields, logprobs) => this.hear(fields, logprobs));
    this.call.result.then((result) => this.finish(result), (error) => this.close(error));
  }

  /** @param {Fields} delta @param {Fields} [more] of the choice @param {Fields} [specdec] */
  push(delta, more = {}, specdec) {
    const choice = { index: 0, delta, logprobs: null, finish_reason: null, ...more };
    this.give({ choices: [choice], ...(this.includeUsage && { usage: null }), ...(specdec && { specdec }) });
  }

  /** @param {Fields} chunk */
  give(chunk) {
    if (this.over) return;
    this.chunks.push({ ...this.call.head, object: "chat.completion.chunk", ...chunk });
    this.wake();
  }

  begin() {
    if (this.begun) return;
    this.begun = true;
    this.push({ role: "assistant", content: "" });
  }

  /** @param {Fields} cycle @param {Fields[] | null} logprobs */
  hear({ text, ids, pieces, num_drafted, num_accepted }, logprobs) {
    this.begin();
    this.push({ content: text }, { logprobs: logprobsOf(logprobs) }, { ids, pieces, num_drafted, num_accepted });
  }

  /** @param {Fields} result */
  finish(result) {
    this.begin();
    this.push({}, { finish_reason: result.finish_reason }, extras(result));
    if (this.includeUsage) this.give({ choices: [], usage: usageOf(result.usage) });
    this.close(null);
  }

  /** @param {Error | null} error */
  close(error) {
    if (this.over) return;
    this.over = true;
    this.error = error;
    this.wake();
  }

  wake() {
    for (const reader of this.readers.splice(0)) reader();
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** @returns {Promise<IteratorResult<Fields, undefined>>} */
  async next() {
    while (this.chunks.length === 0 && !this.over) await new Promise((resolve) => this.readers.push(() => resolve(null)));
    const value = this.chunks.shift();
    if (value !== undefined) return { value, done: false };
    const { error } = this;
    this.error = null; // told once
    if (error) throw error;
    return { value: undefined, done: true };
  }

  /** What leaving a loop calls: nobody reads on. @returns {Promise<IteratorResult<Fields, undefined>>} */
  async return() {
    this.close(null);
    this.error = null;
    this.chunks = [];
    this.call.cancel();
    return { value: undefined, done: true };
  }

  /** Ends the answer with what there is: the reader hears the rest, and finish_reason "cancelled". */
  cancel() {
    this.call.cancel();
  }
}

export class Completions {
  /** @param {Client} client */
  constructor(client) {
    this.client = client;
  }

  /**
   * @param {Fields} body @param {Options} [options]
   * @returns {Promise<any>} a completion, or with `stream: true` a CompletionStream
   */
  async create(body, options = {}) {
    const read = readCompletion(body);
    return read.stream ? new CompletionStream(this.client, read, options) : whole(this.client, read, options);
  }
}
