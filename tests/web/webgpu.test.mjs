// The WebGPU executor on a device that is told when to be done: what it waits for, and where faults come out.
import assert from "node:assert/strict";
import { test } from "node:test";

import { WatchedDevice } from "../../web/executor/device.js";
import { ArtifactError, ContractError, DeviceFault } from "../../web/executor/faults.js";
import { WebGpuExecutor } from "../../web/executor/webgpu.js";

globalThis.GPUBufferUsage ??= { MAP_READ: 1, COPY_DST: 2, STORAGE: 4, COPY_SRC: 8, QUERY_RESOLVE: 16 };
globalThis.GPUMapMode ??= { READ: 1 };

const PLAIN = { name: "out", buffer: 0, offset: 0, dtype: "int32", shape: [8] };
const TARGET = { buffers: [{ name: "out", bytes: 32, lifetime: "state", files: [] }], tensors: [PLAIN], kernels: [], programs: [] };
const feeding = (kind = "prefill") => ({ kind, writes: [["out", 0, [1]]], calls: ["feed"], reads: [] });
const reading = { kind: "verify", writes: [], calls: ["feed"], reads: [["out", 0, 2]] };
const turn = () => new Promise((resolve) => setTimeout(resolve, 5));

/** A device whose work is done, or fails, one submit at a time. */
function fakeDevice() {
  /** @type {{resolve: () => void, reject: (error: Error) => void}[]} */
  const work = [];
  let lose = () => {};
  const waiting = () => new Promise((resolve, reject) => work.push({ resolve, reject }));
  const encoder = {
    beginComputePass: () => ({ setPipeline() {}, setBindGroup() {}, dispatchWorkgroups() {}, end() {} }),
    copyBufferToBuffer() {},
    finish: () => (device.recorded += 1),
  };
  const device = {
    work,
    submits: 0,
    recorded: 0,
    ran: [],
    errors: [],
    lost: new Promise((resolve) => (lose = () => resolve({ reason: "unknown", message: "unplugged" }))),
    lose: () => lose(),
    addEventListener: (_, hear) => device.errors.push(hear),
    destroy: () => lose(),
    createBuffer: ({ size, label }) => ({
      size,
      mapAsync: label === "idle" ? turn : waiting,
      getMappedRange: (at, bytes) => new ArrayBuffer(bytes),
      unmap() {},
      destroy() {},
    }),
    createCommandEncoder: () => encoder,
    queue: { submit: ([commands]) => ((device.submits += 1), device.ran.push(commands)), writeBuffer() {}, onSubmittedWorkDone: waiting },
  };
  return device;
}

function executorOn(software = false) {
  const device = fakeDevice();
  const adapter = { info: { vendor: software ? "swiftshader" : "maker" } };
  const executor = new WebGpuExecutor(new WatchedDevice(device, adapter, false), TARGET, new Uint8Array());
  executor.buffers = [device.createBuffer({ size: 32 })];
  executor.programs.set("feed", [{ pipeline: {}, group: {}, grid: [1, 1, 1] }]);
  return { device, executor };
}

/** What became of a promise by now: a round trip or two later. */
function state(promise) {
  const later = turn().then(turn).then(turn).then(() => "waits");
  return Promise.race([promise.then(() => "done", (error) => error.message), later]);
}

test("a submit that feeds tokens is answered when the one before it is done: two on the device", async () => {
  const { device, executor } = executorOn();
  assert.equal(await state(executor.submit(feeding())), "done");
  const second = executor.submit(feeding());
  assert.equal(device.submits, 2, "encoded without a wait");
  assert.equal(await state(second), "waits");
  device.work[0].resolve();
  assert.equal(await state(second), "done");
  const third = executor.submit(feeding("draft"));
  assert.equal(await state(third), "waits");
  device.work[1].resolve();
  assert.equal(await state(third), "done");
  assert.deepEqual((await third).values, []);
  const settled = executor.settle();
  assert.equal(await state(settled), "waits");
  device.work[2].resolve();
  assert.equal(await state(settled), "done");
  assert.equal(await state(executor.settle()), "done", "nothing is left");
});

test("a submit with reads is answered when all before it is done", async () => {
  const { device, executor } = executorOn();
  await executor.submit(feeding());
  const round = executor.submit(reading);
  assert.equal(device.submits, 2, "encoded without a wait");
  device.work[1].resolve();
  assert.equal(await state(round), "waits");
  device.work[0].resolve();
  assert.deepEqual((await round).values, [[0, 0]]);
  assert.equal(await state(executor.settle()), "done");
});

test("other submits and software adapters are waited for", async () => {
  for (const [software, kind] of [[true, "prefill"], [true, "draft"], [false, "verify"]]) {
    const { device, executor } = executorOn(software);
    const first = executor.submit(feeding(kind));
    assert.equal(await state(first), "waits", `${software} ${kind}`);
    device.work[0].resolve();
    assert.equal(await state(first), "done");
  }
});

const failures = {
  "its work fails": (device) => device.work[0].reject(new Error("broken")),
  "the device is lost": (device) => device.lose(),
  "the GPU reports an error": (device) => {
    device.errors[0]({ error: { message: "too many workgroups" } });
    device.work[0].resolve();
  },
};
for (const [name, fail] of Object.entries(failures)) {
  test(`of a submit that ran ahead ${name}: the next wait says so, whichever it is`, async () => {
    const waits = { feed: (e) => e.submit(feeding()), read: (e) => e.submit(reading), settle: (e) => e.settle() };
    for (const [what, wait] of Object.entries(waits)) {
      const { device, executor } = executorOn();
      await executor.submit(feeding());
      const next = wait(executor);
      fail(device);
      for (const later of device.work.slice(1)) later.resolve();
      await assert.rejects(next, DeviceFault, what);
    }
  });
}

test("a failure that nobody waits for is not unhandled, nor is one after close", async () => {
  const { device, executor } = executorOn();
  await executor.submit(feeding());
  device.work[0].reject(new Error("broken")); // node ends the tests at an unhandled rejection
  await turn();
  executor.close();
  await turn();
  await assert.rejects(executor.submit(reading), DeviceFault);
});

test("a wrong submit leaves what ran ahead to the next wait", async () => {
  const { device, executor } = executorOn();
  await executor.submit(feeding());
  await assert.rejects(executor.submit({ ...feeding(), calls: ["nothing"] }), ContractError);
  const settled = executor.settle();
  assert.equal(await state(settled), "waits");
  device.work[0].resolve();
  assert.equal(await state(settled), "done");
});

test("commands are made while the device works, run once, and are dropped with the buffer they copy to", async () => {
  const { device, executor } = executorOn();
  const round = async (calls, count = 2) => {
    const done = executor.submit({ ...reading, calls, reads: [["out", 0, count]] });
    for (const work of device.work.splice(0)) work.resolve();
    await done;
  };
  await round(["feed"]);
  assert.deepEqual([device.recorded, device.ran], [2, [1]], "one more is made after the submit");
  await round(["feed"]);
  await round(["feed"]);
  assert.deepEqual(device.ran, [1, 2, 3]);
  await round(["feed"], 4); // other reads: other commands
  await round(["feed", "feed"]); // few dispatches: one command buffer
  assert.deepEqual(device.ran, [1, 2, 3, 5, 7]);
  await round(["feed"]);
  assert.deepEqual(device.ran.slice(5), [4]);
  executor.stagingOf(100000);
  const before = device.recorded;
  await round(["feed"]);
  assert.equal(device.ran.at(-1), before + 1, "made anew");
});

test("a long submit goes over in even parts, every dispatch once and in order, and reads with the last", async () => {
  for (const [count, parts] of [[1, 1], [143, 1], [145, 2], [278, 3], [1112, 12]]) {
    const { device, executor } = executorOn();
    /** @type {any[]} */
    const ran = [];
    device.createCommandEncoder = () => {
      /** @type {any[]} */
      const mine = [];
      const pass = { setPipeline() {}, setBindGroup: (_, group) => mine.push(group), dispatchWorkgroups() {}, end() {} };
      return { beginComputePass: () => pass, copyBufferToBuffer: () => mine.push("read"), finish: () => mine };
    };
    device.queue.submit = ([commands]) => ran.push(commands);
    const groups = Array.from({ length: count }, (_, i) => i);
    executor.programs.set("long", groups.map((group) => ({ pipeline: {}, group, grid: [1, 1, 1] })));
    const done = executor.submit({ ...reading, calls: ["long"] });
    for (const work of device.work.splice(0)) work.resolve();
    await done;
    assert.equal(ran.length, parts, `${count} dispatches`);
    assert.deepEqual(ran.flat(), [...groups, "read"]);
    const sizes = ran.map((one) => one.filter((each) => each !== "read").length);
    assert.ok(Math.max(...sizes) - Math.min(...sizes) < parts + 1 && sizes.every((size) => size > 0), String(sizes));
  }
});

/** A target of three programs over three kernels; "kernels.wgsl" is their texts, a byte each. */
const KERNEL = { entry: "main", bindings: [0], args: [{ access: "read_write" }] };
const COMPILED = {
  ...TARGET,
  kernels: [0, 1, 2].map((at) => ({ ...KERNEL, name: `kernel ${at}`, source: [at, 1] })),
  programs: [["plain", [0, 1]], ["filter", [0, 2]], ["spare", [2]]].map(([name, used]) => ({
    name,
    dispatches: used.map((kernel) => ({ kernel, tensors: [0], grid: [1, 1, 1] })),
  })),
};
globalThis.GPUShaderStage ??= { COMPUTE: 4 };

/** An executor that has compiled what it compiles at load, and the names of all that its device compiled and bound. */
async function compiledOn(software, wrong = "") {
  const { device } = executorOn(software);
  const did = [];
  const found = { type: "error", lineNum: 3, message: "unresolved value 'x'" };
  const scopes = [];
  Object.assign(device, {
    pushErrorScope: () => scopes.push(null),
    popErrorScope: async () => scopes.pop(),
    createShaderModule: ({ label, code }) => {
      did.push(`text ${code}`);
      if (label === wrong) scopes[scopes.length - 1] = new Error("invalid");
      return { label, getCompilationInfo: async () => ({ messages: label === wrong ? [found] : [] }) };
    },
    createBindGroupLayout: () => ({}),
    createPipelineLayout: () => ({}),
    createComputePipelineAsync: async ({ label }) => {
      if (label === wrong) throw new Error("invalid");
      did.push(label);
      return {};
    },
    createBindGroup: ({ label }) => did.push(`group of ${label}`),
  });
  const adapter = { info: { vendor: software ? "swiftshader" : "maker" } };
  const executor = new WebGpuExecutor(new WatchedDevice(device, adapter, false), COMPILED, new TextEncoder().encode("abc"));
  executor.buffers = [device.createBuffer({ size: 32 })];
  const told = [];
  await executor.ready((done, total) => told.push(`${done}/${total}`));
  return { device, executor, did, told };
}

test("a GPU's programs are compiled at load, each kernel once", async () => {
  const { did, told, executor } = await compiledOn(false);
  assert.deepEqual(did.filter((what) => what.startsWith("kernel")).sort(), ["kernel 0", "kernel 1", "kernel 2"]);
  assert.equal(did.filter((what) => what.startsWith("group")).length, 3);
  assert.deepEqual(told, ["1/3", "2/3", "3/3"]);
  await executor.make(["plain", "filter"]);
  assert.equal(did.length, 9, "nothing is made twice");
});

test("a software adapter's programs are compiled when they are first called, and their text is checked at load", async () => {
  const { device, did, told, executor } = await compiledOn(true);
  assert.deepEqual(did, ["text a", "text b", "text c"]);
  assert.deepEqual(told, ["1/3", "2/3", "3/3"]);
  for (const [call, made] of [["plain", ["kernel 0", "kernel 1"]], ["filter", ["kernel 2"]], ["plain", []]]) {
    did.length = 0;
    const answer = executor.submit({ kind: "verify", writes: [], calls: [call], reads: [] });
    await state(answer);
    device.work.pop().resolve();
    await answer;
    assert.deepEqual(did.filter((what) => what.startsWith("kernel")), made);
  }
  const unknown = executor.submit({ kind: "verify", writes: [], calls: ["none"], reads: [] });
  await assert.rejects(unknown, ContractError);
});

test("a kernel whose text is wrong is named at load, on every adapter", async () => {
  for (const software of [false, true]) {
    await assert.rejects(compiledOn(software, "kernel 2"), (error) => {
      assert.ok(error instanceof ArtifactError);
      assert.equal(error.where, "kernel 2, line 3");
      return true;
    });
  }
});
