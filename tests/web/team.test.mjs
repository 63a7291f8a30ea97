// The threads of the WASM executor without WASM: kernels are JavaScript functions over shared memory, helpers are Node's workers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

import { DeviceFault } from "../../web/executor/faults.js";
import { bindPrograms, listPrograms } from "../../web/executor/wasm_programs.js";
import { fail, follow, lead, makeControl } from "../../web/executor/wasm_team.js";

const STEPS = 40;
const CELLS = 12; // of one step's work, shared among its parts

/** Step i writes row i + 1 from the whole of row i: a part that ran too early, twice or never leaves other numbers. */
function kernels(memory, onPart = () => {}) {
  return {
    mix(step, part, parts) {
      onPart();
      const before = step * CELLS;
      const start = Math.trunc((CELLS * part) / parts);
      const end = Math.trunc((CELLS * (part + 1)) / parts);
      for (let i = start; i < end; i++) {
        let sum = memory[before + CELLS + i]; // what an earlier run left is part of the result: running twice shows
        for (let j = 0; j < CELLS; j++) sum = (Math.imul(sum, 31) + memory[before + ((i + j) % CELLS)]) | 0;
        memory[before + CELLS + i] = sum;
      }
    },
    odd() {
      throw new Error("odd");
    },
  };
}

/** Two programs over one tensor a step; every third step cannot be cut. */
function target() {
  const dispatches = Array.from({ length: STEPS }, (_, i) => ({ kernel: 0, tensors: [i], grid: [i % 3 === 0 ? 1 : CELLS, 1, 1] }));
  return {
    kernels: [{ entry: "mix" }],
    tensors: Array.from({ length: STEPS }, (_, i) => ({ buffer: 0, offset: i })),
    programs: [{ dispatches }, { dispatches: dispatches.slice(0, 7) }],
  };
}

function fresh() {
  const memory = new Int32Array(new SharedArrayBuffer(4 * CELLS * (STEPS + 1)));
  for (let i = 0; i < CELLS; i++) memory[i] = i + 1;
  return memory;
}

if (!isMainThread) {
  const { memory, control, programs, broken, helped } = workerData;
  const bound = bindPrograms(programs, kernels(memory, () => Atomics.add(helped, 0, 1)));
  if (broken) {
    for (const list of bound) for (const ticket of list) ticket.kernel = kernels(memory).odd;
  }
  parentPort.postMessage("ready");
  try {
    follow(control, bound);
  } catch {
    fail(control);
  }
}

async function rounds(threads, count, broken = false) {
  const memory = fresh();
  const control = makeControl();
  const programs = listPrograms(target(), [0], threads);
  const helped = new Int32Array(new SharedArrayBuffer(4));
  const data = { workerData: { memory, control, programs, broken, helped } };
  const helpers = Array.from({ length: threads - 1 }, () => new Worker(new URL(import.meta.url), data));
  try {
    await Promise.all(helpers.map((helper) => new Promise((resolve) => helper.once("message", resolve))));
    const bound = bindPrograms(programs, kernels(memory));
    for (let i = 0; i < count; i++) {
      lead(control, i % 2, bound[i % 2]);
      if (i % 50 === 0) await new Promise((resolve) => setTimeout(resolve, 2)); // helpers fall asleep, and start up
    }
  } finally {
    await Promise.all(helpers.map((helper) => helper.terminate()));
  }
  assert.ok(threads === 1 || helped[0] > count, "the helpers did some of the work");
  return [...memory];
}

test("any number of threads leaves the same numbers", { skip: !isMainThread }, async () => {
  const alone = await rounds(1, 400);
  assert.notDeepEqual(alone, [...fresh()]);
  for (const threads of [2, 3, 5]) assert.deepEqual(await rounds(threads, 400), alone, `${threads} threads`);
});

test("a helper whose kernel throws is a fault", { skip: !isMainThread }, async () => {
  await assert.rejects(() => rounds(2, 100000, true), DeviceFault);
});

test("tickets wait for all parts of the steps before", { skip: !isMainThread }, () => {
  const { lists } = listPrograms(target(), [0], 2);
  assert.deepEqual(lists[0].slice(0, 5).map(([, args, after]) => [...args, after]), [[0, 0, 1, 0], [1, 0, 2, 1], [1, 1, 2, 1], [2, 0, 2, 3], [2, 1, 2, 3]]);
});
