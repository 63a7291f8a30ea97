// A stand-in for the page's worker: answers with the letters of the alphabet, a letter a task, and notes what it was told.
//
// Its invariant is the real one's: one request at a time. `faults`: {max_tokens: letters before an error}.
import assert from "node:assert/strict";

const DONE = { stop: null, seed: null, speculation: { mode: "greedy" }, timing_ms: {}, device: { backend: "fake" } };
const tick = () => new Promise((resolve) => setTimeout(resolve, 1));

export const log = [];
export const faults = new Map();

class FakeWorker {
  constructor() {
    this.cancelled = false;
    this.busy = false;
    this.gone = false;
  }

  postMessage(given) {
    const message = structuredClone(given); // throws where a worker's does
    log.push(message);
    if (message.op === "cancel") {
      this.cancelled = true;
      return;
    }
    assert.ok(!this.busy, "two requests at once");
    this.busy = true;
    void this.answer(message);
  }

  terminate() {
    this.gone = true;
  }

  say(id, kind, fields) {
    if (!this.gone) this.onmessage({ data: { id, kind, ...fields } });
  }

  async answer({ id, op, ...request }) {
    this.cancelled = false;
    await tick();
    const told = op === "load" ? { result: { model: { name: "fake" }, context: 40, device: { backend: "wasm" } } } : await this.generate(id, request);
    this.busy = false;
    this.say(id, told.error ? "error" : "result", told.error ? told : { result: told.result });
  }

  async generate(id, { max_tokens: max, messages, logprobs }) {
    if (max === "die") {
      this.onerror({ preventDefault: () => {}, message: "out of memory" });
      return { error: {} };
    }
    this.say(id, "progress", { stage: "prefill", done: 1, total: 1 });
    let text = "";
    for (let i = 0; i < max && !this.cancelled; i++) {
      if (faults.get(max) === i) return { error: { type: "DeviceFault", message: "lost", where: "device", action: "" } };
      await tick();
      const letter = String.fromCharCode(97 + (i % 26));
      text += letter;
      const told = logprobs && {
        logprobs: [{ id: i, logprob: -0.5 * i || 0, top: Array.from({ length: logprobs }, (_, n) => ({ id: 25 - n, logprob: -1 - n })) }],
        token_bytes: Object.fromEntries(Array.from({ length: 26 }, (_, n) => [n, [97 + n]])),
      };
      this.say(id, "text", { text: letter, pieces: [letter], ids: [i], num_drafted: 0, num_accepted: 0, ...told });
    }
    const ids = Array.from(text, (_, i) => i);
    const usage = { prompt_tokens: messages.length, completion_tokens: text.length, cached_tokens: 0 };
    const finish_reason = this.cancelled ? "cancelled" : "length";
    return { result: { result: { prompt_ids: [1], token_ids: ids, text, usage, finish_reason, ...DONE }, stats: {} } };
  }
}

globalThis.Worker = FakeWorker;
globalThis.document = { baseURI: "http://localhost/" };
