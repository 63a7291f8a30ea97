// The one queue of a page: what was asked first runs first, one at a time; who waits costs nothing.
//
// Does not know: the worker, requests. Invariants: an idle queue starts its work before `add` returns; the next work has started
// when the promise of the one before it is settled; whatever a work does, the next one gets its turn.

import { RequestError } from "../executor/faults.js";

/** @returns {RequestError} what an aborted request ends in: its `name` is "AbortError", as a page expects of an AbortSignal */
export function aborted() {
  return Object.assign(new RequestError("the request was aborted", "signal"), { name: "AbortError" });
}

/** One work: waiting, running, or over. @template T */
export class Turn {
  /** @param {() => Promise<T>} work */
  constructor(work) {
    this.work = work;
    /** @type {"waiting" | "running" | "over"} */
    this.state = "waiting";
    /** @type {(value: T) => void} */
    this.resolve = () => {};
    /** @type {(error: unknown) => void} */
    this.reject = () => {};
    /** @type {Promise<T>} */
    this.done = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
  }
}

export class Queue {
  constructor() {
    /** The running turn, then those that wait, in order. @type {Turn<any>[]} */
    this.turns = [];
  }

  /** @template T @param {() => Promise<T>} work @returns {Turn<T>} */
  add(work) {
    const turn = new Turn(work);
    this.turns.push(turn);
    if (this.turns.length === 1) void this.run(turn);
    return turn;
  }

  /** A turn that still waits never runs: its promise is rejected. @param {Turn<any>} turn @returns {boolean} was it so? */
  drop(turn) {
    if (turn.state !== "waiting") return false;
    turn.state = "over";
    this.turns.splice(this.turns.indexOf(turn), 1);
    turn.reject(aborted());
    return true;
  }

  /** @param {Turn<any>} turn the first of the queue */
  async run(turn) {
    turn.state = "running";
    let settle;
    try {
      const value = await turn.work();
      settle = () => turn.resolve(value);
    } catch (error) {
      settle = () => turn.reject(error);
    }
    turn.state = "over";
    this.turns.shift();
    if (this.turns.length > 0) void this.run(this.turns[0]);
    settle();
  }
}
