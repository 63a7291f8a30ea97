// The pump: carries submits from Python's decode core to the executor and readbacks back, until the request ends.
//
// Does not know: tokens' meaning, kernels, the page. Invariants: Python is entered once a submit, by a plain
// synchronous call; a synchronous executor stays synchronous; between submits the worker's messages are heard, so
// that a cancel takes effect before the next one. What the listener hears of a round is told while the device works on the
// next one, where the executor works by itself: text costs no time then. All is told before the result or an error.

import { SpecdecError, errorFromJson } from "../executor/faults.js";

/** @typedef {import("../executor/types.js").Executor} Executor */
/** @typedef {import("../executor/types.js").Submit} Submit */
/** @typedef {import("../executor/types.js").Readback} Readback */
/** @typedef {{ids: number[], num_drafted: number, num_accepted: number, pieces?: string[], logprobs?: object[]}} Emit pieces: with stop strings only */
/** @typedef {{onEmit: (emit: Emit) => void, onProgress: (done: number, total: number) => void}} Listener */

/**
 * Times of one request, by the rules of specdec_runtime/drive.py: prefill = from the start to the first submit that is
 * not a prefill, all work before it done; decode = from there to the end; draft, verify = the calls within it; other = the
 * rest of it.
 */
export class Clock {
  constructor() {
    this.start = performance.now();
    /** @type {number | null} */
    this.firstToken = null;
    /** @type {number | null} */
    this.prefill = null;
    this.draft = 0;
    this.verify = 0;
    this.stats = { num_sends: 0, python_ms: 0, num_submits: 0, submit_ms: 0 };
  }

  /** @param {Submit} batch */
  submits(batch) {
    if (batch.kind !== "prefill") this.prefill ??= performance.now() - this.start;
  }

  /** @param {Submit} batch @param {Readback} readback @param {number} wall */
  ran(batch, readback, wall) {
    this.stats.num_submits += 1;
    this.stats.submit_ms += wall;
    if (batch.kind === "prefill") return;
    batch.calls.forEach((call, i) => {
      if (call.startsWith("draft.")) this.draft += readback.ms[i];
      else this.verify += readback.ms[i];
    });
  }

  emitted() {
    this.firstToken ??= performance.now() - this.start;
  }

  /** @param {number} loadMs @returns {Record<string, number | null>} the `timing_ms` of a result */
  timing(loadMs) {
    const total = performance.now() - this.start;
    const prefill = this.prefill ?? total;
    const decode = total - prefill;
    const { draft, verify, firstToken: first_token } = this;
    return { load: loadMs, first_token, prefill, decode, draft, verify, other: decode - draft - verify };
  }
}

/** Lets the worker hear its messages: a task of its own, some microseconds, where a timer would cost 4 ms. */
class Breath {
  constructor() {
    const { port1, port2 } = new MessageChannel();
    /** @type {() => void} */
    this.wake = () => {};
    port1.onmessage = () => this.wake();
    this.port = port2;
  }

  /** @returns {Promise<void>} */
  take() {
    return new Promise((resolve) => {
      this.wake = resolve;
      this.port.postMessage(0);
    });
  }
}

export class Pump {
  /** @param {import("./python.js").Engine} engine @param {Executor} executor */
  constructor(engine, executor) {
    this.engine = engine;
    this.executor = executor;
    this.breath = new Breath();
  }

  /** The running request ends, with what is committed, before its next submit. */
  cancel() {
    this.engine.cancel();
  }

  /** @param {Clock} clock @param {() => string} enter @returns {any[]} the effects that Python gave */
  python(clock, enter) {
    const start = performance.now();
    const effects = JSON.parse(enter());
    clock.stats.python_ms += performance.now() - start;
    clock.stats.num_sends += 1;
    return effects;
  }

  /** @param {Clock} clock @param {Submit} batch @returns {Promise<Readback | SpecdecError>} */
  async answer(clock, batch) {
    try {
      if (clock.prefill === null && batch.kind !== "prefill") await this.executor.settle();
      clock.submits(batch);
      const start = performance.now();
      const readback = await this.executor.submit(batch);
      clock.ran(batch, readback, performance.now() - start);
      return readback;
    } catch (error) {
      if (error instanceof SpecdecError) return error;
      throw error;
    }
  }

  /**
   * One submit; `tell` is for what came before it.
   * @param {Clock} clock @param {Submit} batch @param {() => void} tell @returns {Promise<any[]>}
   */
  async step(clock, batch, tell) {
    const late = this.executor.isAsync && clock.firstToken !== null; // the first token is not kept back
    if (!late) tell();
    const answer = this.answer(clock, batch); // a started device has its work when this returns
    let got;
    try {
      if (late) tell();
    } finally {
      got = await answer; // whatever became of the telling
    }
    if (!this.executor.isAsync) await this.breath.take();
    if (got instanceof SpecdecError) {
      const text = JSON.stringify({ error: got.toJson() });
      return this.python(clock, () => this.engine.fail(text));
    }
    const text = JSON.stringify(got);
    return this.python(clock, () => this.engine.send(text));
  }

  /** @param {Clock} clock @param {any[]} effects @param {Listener} listener */
  tell(clock, effects, listener) {
    for (const effect of effects) {
      if (effect.type === "progress") listener.onProgress(effect.done, effect.total);
      if (effect.type !== "emit") continue;
      clock.emitted();
      listener.onEmit(effect);
    }
  }

  /**
   * Run one request to its end; cancelled: it is to end as soon as it can.
   * @param {object} request @param {Listener} listener @param {boolean} [cancelled]
   * @returns {Promise<{result: any, clock: Clock}>}
   */
  async run(request, listener, cancelled = false) {
    const clock = new Clock();
    let effects = this.python(clock, () => this.engine.start(JSON.stringify(request)));
    if (cancelled) this.cancel(); // a start forgets those before it
    for (;;) {
      const told = effects;
      const last = told[told.length - 1];
      const tell = () => this.tell(clock, told, listener);
      if (last.type === "submit") {
        effects = await this.step(clock, last, tell);
        continue;
      }
      tell();
      if (last.type === "error") throw errorFromJson(last.error);
      await this.executor.settle(); // a cancelled prefill may have left work
      return { result: last.result, clock };
    }
  }
}
