// Several threads run one program: a flat list of tickets that they take in order, each ticket one part of one kernel.
//
// Does not know: kernels, memory layout, workers' start. Invariants: a ticket runs when all tickets of the steps before
// its own are done; whoever is free takes the next one, so a thread that the machine has put aside holds up at most the
// part it is in; between programs no thread but the first touches the counters; the first never waits without a limit.
// All words live in one small SharedArrayBuffer; Atomics order them, and with them the kernels' plain stores.

import { DeviceFault } from "./faults.js";

/** @typedef {{kernel: Function, args: number[], after: number}} Ticket `after`: tickets of the steps before */

const LINE = 16; // words between two counters: a cache line each
const OPEN = 0; // program index + 1 while it runs, else 0
const NEXT = LINE; // the next ticket
const DONE = 2 * LINE; // tickets done
const ACTIVE = 3 * LINE; // helpers inside the program
const ROUND = 4 * LINE; // counts programs; wakes the helpers
const SLEEPERS = 5 * LINE; // threads asleep on DONE or ACTIVE
const FAULT = 6 * LINE; // 1 once a helper's kernel has thrown
const WORDS = 7 * LINE;
const SPINS = 3000; // looks before a thread sleeps: some 50 us
const LIMIT_MS = 30000; // the longest a part may take

const pause = /** @type {() => void} */ (/** @type {any} */ (Atomics).pause ?? (() => {}));

/** @returns {Int32Array} */
export function makeControl() {
  return new Int32Array(new SharedArrayBuffer(WORDS * 4));
}

/**
 * Wait until a counter has a value that suits: look for a while, then sleep until it changes.
 * @param {Int32Array} control @param {number} at @param {(value: number) => boolean} suits
 * @returns {boolean} false when a helper failed, or the counter kept still for LIMIT_MS
 */
function wait(control, at, suits) {
  for (let i = 0; i < SPINS; i++) {
    if (suits(Atomics.load(control, at))) return true;
    pause();
  }
  Atomics.add(control, SLEEPERS, 1);
  let good = true;
  for (let value = Atomics.load(control, at); good && !suits(value); value = Atomics.load(control, at)) {
    good = Atomics.load(control, FAULT) === 0 && Atomics.wait(control, at, value, LIMIT_MS) !== "timed-out";
  }
  Atomics.sub(control, SLEEPERS, 1);
  return good;
}

/** @param {Int32Array} control @param {number} at @param {number} change */
function change(control, at, change) {
  Atomics.add(control, at, change);
  if (Atomics.load(control, SLEEPERS) > 0) Atomics.notify(control, at);
}

/** Take tickets until there are none. @param {Int32Array} control @param {Ticket[]} tickets @returns {boolean} as `wait` */
function work(control, tickets) {
  for (;;) {
    const next = Atomics.add(control, NEXT, 1);
    if (next >= tickets.length) return true;
    const { kernel, args, after } = tickets[next];
    if (Atomics.load(control, DONE) < after && !wait(control, DONE, (done) => done >= after)) return false;
    kernel(...args);
    change(control, DONE, 1);
  }
}

/**
 * The first thread: run one program with whatever helpers come.
 * @param {Int32Array} control @param {number} program @param {Ticket[]} tickets
 */
export function lead(control, program, tickets) {
  Atomics.store(control, NEXT, 0);
  Atomics.store(control, DONE, 0);
  Atomics.store(control, OPEN, program + 1);
  Atomics.add(control, ROUND, 1);
  Atomics.notify(control, ROUND);
  let good = work(control, tickets);
  good = good && wait(control, DONE, (done) => done === tickets.length);
  Atomics.store(control, OPEN, 0);
  good = good && wait(control, ACTIVE, (active) => active === 0);
  if (!good) throw new DeviceFault("a helper thread failed or does not answer", "WASM threads", "Load the bundle again");
}

/** A helper's life: a program whenever one opens. Ends by `fail`, else with the worker. */
export function follow(/** @type {Int32Array} */ control, /** @type {Ticket[][]} */ programs) {
  for (let round = 0; ; ) {
    for (let i = 0; i < SPINS && Atomics.load(control, ROUND) === round; i++) pause();
    while (Atomics.load(control, ROUND) === round) Atomics.wait(control, ROUND, round);
    round = Atomics.load(control, ROUND);
    Atomics.add(control, ACTIVE, 1); // before the look at OPEN: the first thread closes, then waits for ACTIVE to be 0
    const open = Atomics.load(control, OPEN);
    if (open) work(control, programs[open - 1]);
    change(control, ACTIVE, -1);
  }
}

/** Tell the first thread that this helper is lost. @param {Int32Array} control */
export function fail(control) {
  Atomics.store(control, FAULT, 1);
  Atomics.store(control, DONE, -1); // changed too: who is about to wait for it would sleep through the notice
  Atomics.notify(control, DONE);
}
