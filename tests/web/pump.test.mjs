// The pump on an engine and executors that note what happens: what is told when, whose time counts, where faults go.
import assert from "node:assert/strict";
import { test } from "node:test";

import { DeviceFault } from "../../web/executor/faults.js";
import { measureCosts } from "../../web/worker/costs.js";
import { Pump } from "../../web/worker/pump.js";

const submit = (kind) => ({ type: "submit", kind, writes: [], calls: ["target.verify_1"], reads: [] });
const emit = (id) => ({ type: "emit", ids: [id], num_drafted: 0, num_accepted: 0 });
const finish = { type: "finish", result: { token_ids: [] } };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Runs rounds of effects; `log` is the order of everything. */
async function run(rounds, { isAsync, submitMs = 0, settleMs = 0, fault = null, settleFault = null, onEmit = () => {} }) {
  const log = [];
  const next = () => JSON.stringify(rounds.shift());
  const engine = {
    start: next,
    send: (text) => (log.push("send"), JSON.parse(text).ms.length && next()),
    forget: () => log.push("forget"),
    fail: (text) => (log.push(`fail ${JSON.parse(text).error.message}`), JSON.stringify([{ type: "error", ...JSON.parse(text) }])),
  };
  const executor = {
    isAsync,
    submit: (batch) => {
      log.push(`submit ${batch.kind}`);
      if (batch.kind === fault) {
        if (isAsync) return Promise.reject(new DeviceFault("lost"));
        throw new DeviceFault("lost");
      }
      const readback = { values: [], ms: [1] };
      return isAsync ? sleep(submitMs).then(() => (log.push("done"), readback)) : readback;
    },
    settle: async () => {
      log.push("settle");
      if (settleMs) await sleep(settleMs);
      if (settleFault) throw new DeviceFault(settleFault);
    },
  };
  const listener = {
    onProgress: (done) => log.push(`progress ${done}`),
    onEmit: ({ ids }) => (log.push(`emit ${ids[0]}`), onEmit(ids[0])),
  };
  const pump = new Pump(engine, executor);
  const ended = await pump.run({}, listener).catch((error) => ({ error }));
  pump.breath.port.close();
  return { log, ...ended };
}

const answer = () => [[submit("verify")], [emit(1), submit("verify")], [emit(2), submit("verify")], [emit(3), finish]];

test("text is told while the device works on the next round, the first token at once", async () => {
  const { log, clock } = await run(answer(), { isAsync: true });
  const rounds = ["submit verify", "done", "send", "emit 1", "submit verify", "done", "send", "submit verify", "emit 2", "done", "send", "emit 3"];
  assert.deepEqual(log, ["settle", ...rounds, "settle"]);
  assert.ok(clock.firstToken !== null);
});

test("a synchronous executor holds nothing back", async () => {
  const { log } = await run(answer(), { isAsync: false });
  assert.deepEqual(log.filter((what) => /emit|submit/.test(what)), ["submit verify", "emit 1", "submit verify", "emit 2", "submit verify", "emit 3"]);
});

test("what was committed is told before the error", async () => {
  for (const isAsync of [true, false]) {
    const rounds = [[submit("verify")], [emit(1), submit("verify")], [emit(2), submit("round")]];
    const { log, error } = await run(rounds, { isAsync, fault: "round" });
    assert.ok(error instanceof DeviceFault && error.message === "lost");
    assert.ok(log.includes("emit 2") && log.at(-1) === "fail lost", log.join());
  }
});

test("a listener that fails ends the run once the device is done", async () => {
  const onEmit = (id) => assert.notEqual(id, 2, "cannot be told");
  const { log, error } = await run(answer(), { isAsync: true, onEmit });
  assert.match(error.message, /cannot be told/);
  assert.deepEqual(log.slice(-3), ["emit 2", "done", "forget"]);
});

test("work that fails after the last answer was given leaves nothing to reuse", async () => {
  const { log, error } = await run([[submit("prefill")], [finish]], { isAsync: true, settleFault: "lost late" });
  assert.equal(error.message, "lost late");
  assert.deepEqual(log, ["submit prefill", "done", "send", "settle", "forget"]);
  const fine = await run(answer(), { isAsync: true });
  assert.ok(!fine.log.includes("forget"));
});

test("prefill lasts until the device has done it, the wait is no pass's", async () => {
  const rounds = [[submit("prefill")], [{ type: "progress", done: 1, total: 1 }, submit("draft")], [submit("round")], [emit(1), finish]];
  const { log, clock } = await run(rounds, { isAsync: true, settleMs: 30 });
  assert.deepEqual(log.filter((what) => what !== "done" && what !== "send"), [
    "submit prefill", "progress 1", "settle", "submit draft", "submit round", "emit 1", "settle",
  ]);
  assert.ok(clock.prefill >= 29 && clock.stats.submit_ms < 29, JSON.stringify(clock));
});

/** Measuring on a device and an engine that note what they are brought. */
async function measured(finish_reason) {
  const brought = [];
  const engine = {
    probes: () => JSON.stringify({ submits: [submit("verify")], request: {} }),
    measured: (times) => (brought.push(JSON.parse(times)), JSON.stringify({ type: "ready" })),
  };
  const clock = { timing: () => ({ decode: 8, verify: 6 }) };
  const pump = { run: async () => ({ result: { finish_reason, speculation: { num_cycles: 2 } }, clock }) };
  const known = await measureCosts(engine, { timing: "calls", submit: async () => ({ values: [], ms: [1] }) }, pump);
  return { known, brought };
}

test("the times of a cancelled answer become nobody's costs", async () => {
  assert.deepEqual(await measured("length"), { known: { type: "ready" }, brought: [{ split: true, probe_ms: [1], cycle_ms: 4, submit_ms: 3 }] });
  assert.deepEqual(await measured("cancelled"), { known: null, brought: [] });
});

test("a run that was cancelled before it began is told so once it has", async () => {
  for (const cancelled of [true, false]) {
    const log = [];
    const engine = { start: () => (log.push("start"), JSON.stringify([finish])), cancel: () => log.push("cancel") };
    const pump = new Pump(engine, { settle: async () => {} });
    await pump.run({}, { onEmit: () => {}, onProgress: () => {} }, cancelled);
    pump.breath.port.close();
    assert.deepEqual(log, cancelled ? ["start", "cancel"] : ["start"]);
  }
});
