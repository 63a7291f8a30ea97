// specdec.chat.completions on a stand-in worker: objects, streams, every way to end one, and the order of the queue.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { DeviceFault, RequestError } from "../../web/executor/faults.js";
import { Client } from "../../web/page/client.js";
import { readCompletion } from "../../web/page/completions_request.js";
import { faults, log } from "./fake_worker.mjs";

const messages = [{ role: "user", content: "Hi" }];
const LONG = 3000; // letters: some seconds
const isAbort = (error) => error instanceof RequestError && error.name === "AbortError";
const text = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
const asked = () => log.filter(({ op }) => op === "generate").map(({ max_tokens }) => max_tokens);
let client;
let create;

beforeEach(async () => {
  log.length = 0;
  faults.clear();
  client = new Client();
  create = (fields, options) => client.chat.completions.create({ messages, ...fields }, options);
  await client.load("bundle/");
});
afterEach(() => clearTimeout(client.timer));

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test("a whole completion", async () => {
  const before = Date.now() / 1000 - 1;
  const done = await create({ max_tokens: 3, model: "fake" });
  const { id, created, specdec, ...rest } = done;
  assert.match(id, /^chatcmpl-[0-9a-z]{24}$/);
  assert.ok(Number.isInteger(created) && created > before && created <= Date.now() / 1000);
  assert.deepEqual(rest, {
    object: "chat.completion",
    model: "fake",
    choices: [{ index: 0, message: { role: "assistant", content: "abc", refusal: null }, logprobs: null, finish_reason: "length" }],
    usage: { prompt_tokens: 1, completion_tokens: 3, total_tokens: 4, prompt_tokens_details: { cached_tokens: 0 } },
  });
  assert.deepEqual(specdec.token_ids, [0, 1, 2]);
  const again = await create({ max_tokens: 1, messages: [...messages, done.choices[0].message, ...messages] }); // its message can be sent back
  assert.notEqual(again.id, id);
});

test("a stream: role, deltas, the end, usage", async () => {
  const chunks = await collect(await create({ max_tokens: 2, stream: true, stream_options: { include_usage: true } }));
  const choice = (delta, finish_reason = null) => [{ index: 0, delta, logprobs: null, finish_reason }];
  assert.deepEqual(chunks.map(({ choices }) => choices), [
    choice({ role: "assistant", content: "" }), choice({ content: "a" }), choice({ content: "b" }), choice({}, "length"), [],
  ]);
  assert.deepEqual(chunks.map(({ usage }) => usage), [
    null, null, null, null, { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3, prompt_tokens_details: { cached_tokens: 0 } },
  ]);
  assert.deepEqual(chunks[1].specdec, { ids: [0], pieces: ["a"], num_drafted: 0, num_accepted: 0 });
  assert.deepEqual(chunks[3].specdec.token_ids, [0, 1]);
  assert.equal(new Set(chunks.map(({ id, created, model, object }) => [id, created, model, object].join())).size, 1);
  assert.equal(chunks[0].object, "chat.completion.chunk");
  assert.equal(chunks[0].model, "fake");
  const plain = await collect(await create({ max_tokens: 0, stream: true }));
  assert.deepEqual(plain.map(({ choices }) => choices), [choice({ role: "assistant", content: "" }), choice({}, "length")]);
  assert.ok(plain.every((chunk) => !("usage" in chunk)));
});

test("without a limit the answer may fill the context", async () => {
  assert.equal((await create({})).usage.completion_tokens, 40);
});

test("log-probabilities in OpenAI's form", async () => {
  const entry = (token, logprob, bytes) => ({ token, logprob, bytes });
  const first = { ...entry("a", 0, [97]), top_logprobs: [entry("z", -1, [122])] };
  const second = { ...entry("b", -0.5, [98]), top_logprobs: [entry("z", -1, [122])] };
  const body = { max_tokens: 2, logprobs: true, top_logprobs: 1 };
  assert.deepEqual((await create(body)).choices[0].logprobs, { content: [first, second], refusal: null });
  const chunks = await collect(await create({ ...body, stream: true }));
  assert.deepEqual(chunks.map(({ choices }) => choices[0].logprobs?.content ?? null), [null, [first], [second], null]);
  assert.deepEqual((await create({ ...body, top_logprobs: 0 })).choices[0].logprobs.content.map((told) => told.top_logprobs), [[], []]);
  assert.equal(log.at(-1).logprobs, 1);
});

test("leaving a stream early ends its request, and the next one runs", async () => {
  const leave = {
    break: async (stream) => {
      for await (const chunk of stream) if (chunk.choices[0].delta.content === "c") break;
    },
    throw: async (stream) => {
      const failing = (async () => {
        for await (const chunk of stream) if (chunk.choices[0].delta.content === "c") throw new Error("mine");
      })();
      await assert.rejects(failing, /mine/);
    },
    return: async (stream) => {
      assert.equal((await stream.next()).value.choices[0].delta.role, "assistant");
      assert.deepEqual(await stream.return(), { value: undefined, done: true });
      assert.deepEqual(await stream.next(), { value: undefined, done: true });
    },
  };
  for (const [name, way] of Object.entries(leave)) {
    const count = log.length;
    await way(await create({ max_tokens: LONG, stream: true }));
    assert.equal((await create({ max_tokens: 2 })).choices[0].message.content, "ab", name);
    assert.deepEqual(log.slice(count).map(({ op }) => op), ["generate", "cancel", "generate"], name);
  }
});

test("abort before the call, in the queue, in the middle, after the end", async () => {
  await assert.rejects(create({ max_tokens: 1 }, { signal: AbortSignal.abort() }), isAbort);
  for (const stream of [false, true]) {
    const run = async (fields, options) => (stream ? text(await collect(await create({ ...fields, stream }, options))) : (await create(fields, options)).choices[0].message.content);
    const [waiting, middle, after] = [new AbortController(), new AbortController(), new AbortController()];
    log.length = 0;
    const first = run({ max_tokens: LONG }, { signal: middle.signal, onProgress: () => setTimeout(() => middle.abort(), 20) });
    const second = run({ max_tokens: 5 }, { signal: waiting.signal });
    const third = run({ max_tokens: 4 }, { signal: after.signal });
    waiting.abort();
    await assert.rejects(second, isAbort);
    await assert.rejects(first, isAbort);
    assert.equal(await third, "abcd");
    after.abort();
    assert.deepEqual(asked(), [LONG, 4]); // what was aborted in the queue never reached the worker
    assert.deepEqual(log.filter(({ op }) => op === "cancel").length, 1);
    assert.equal(await run({ max_tokens: 1 }), "a");
  }
});

test("an abort does not wait for the pass that is under way, the next request does", async () => {
  const abort = new AbortController();
  const first = create({ max_tokens: LONG }, { signal: abort.signal });
  setTimeout(() => abort.abort(), 5);
  await assert.rejects(first, isAbort);
  assert.equal(client.queue.turns.length, 1);
  await create({ max_tokens: 1 });
  assert.equal(client.queue.turns.length, 0);
});

test("a signal keeps no listener of a request that is over", async () => {
  const { signal } = new AbortController();
  const counts = { add: 0, remove: 0 };
  const [add, remove] = [signal.addEventListener.bind(signal), signal.removeEventListener.bind(signal)];
  signal.addEventListener = (...args) => (counts.add++, add(...args));
  signal.removeEventListener = (...args) => (counts.remove++, remove(...args));
  await create({ max_tokens: 1 }, { signal });
  await collect(await create({ max_tokens: 1, stream: true }, { signal }));
  assert.deepEqual(counts, { add: 2, remove: 2 });
});

test("cancel ends an answer with what there is", async () => {
  const stream = await create({ max_tokens: LONG, stream: true });
  const chunks = [];
  for await (const chunk of stream) {
    chunks.push(chunk);
    if (chunks.length === 4) stream.cancel();
  }
  assert.equal(chunks.at(-1).choices[0].finish_reason, "cancelled");
  assert.ok(text(chunks).startsWith("abc"));
  assert.equal(chunks.at(-1).specdec.token_ids.length, text(chunks).length);
  const next = create({ max_tokens: 2 });
  stream.cancel(); // over: it is not the next one's
  assert.equal((await next).choices[0].finish_reason, "length");
});

test("a stream that is cancelled while it waits ends in an error", async () => {
  const first = create({ max_tokens: 2 });
  const waiting = await create({ max_tokens: 3, stream: true });
  waiting.cancel();
  await assert.rejects(waiting.next(), isAbort);
  await first;
  assert.deepEqual(asked(), [2]);
});

test("who was answered finds the queue free: a cancel is the new request's", async () => {
  await client.generate({ messages, max_tokens: 1 });
  const next = client.generate({ messages, max_tokens: LONG });
  client.cancel();
  assert.equal((await next).finish_reason, "cancelled");
});

test("a stream that nobody reads blocks nobody, and can be read later", async () => {
  const left = await create({ max_tokens: 5, stream: true });
  assert.equal((await create({ max_tokens: 2 })).choices[0].message.content, "ab");
  assert.equal(text(await collect(left)), "abcde");
  const failing = await create({ max_tokens: 6, stream: true, n: 1 });
  faults.set(6, 2);
  await create({ max_tokens: 1 }); // the error of a stream that nobody reads is nobody's
  const heard = [];
  await assert.rejects(async () => {
    for await (const chunk of failing) heard.push(chunk);
  }, DeviceFault);
  assert.equal(text(heard), "ab");
  assert.deepEqual(await failing.next(), { value: undefined, done: true });
});

test("requests of every kind run in the order in which they were asked for", async () => {
  const ended = [];
  const note = (name, promise) => promise.then(() => ended.push(name));
  const all = [
    note("a", create({ max_tokens: 3 })),
    note("b", client.generate({ messages, max_tokens: 1 })),
    note("load", client.load("other/")),
    note("c", collect(await create({ max_tokens: 2, stream: true }))),
  ];
  await Promise.all(all);
  assert.deepEqual(ended, ["a", "b", "load", "c"]);
  assert.deepEqual(log.map(({ op }) => op), ["load", "generate", "generate", "load", "generate"]);
});

test("what waits behind a worker that died is refused, and a new load works", async () => {
  const [dead, behind, load, after] = await Promise.allSettled([
    create({ max_tokens: "die" }), create({ max_tokens: 1 }), client.load("bundle/"), create({ max_tokens: 2 }),
  ]);
  assert.ok(dead.reason instanceof DeviceFault && behind.reason instanceof RequestError);
  assert.equal(load.status, "fulfilled");
  assert.equal(after.value.choices[0].message.content, "ab");
});

test("another model than the bundle's is refused", async () => {
  await assert.rejects(create({ model: "gpt-x", max_tokens: 1 }), (error) => error instanceof RequestError && error.where === "model");
  await assert.rejects(collect(await create({ model: "gpt-x", stream: true })), RequestError);
  assert.deepEqual(asked(), []);
});

test("what is read of a request is handed on under generate's names", () => {
  const { request, stream, includeUsage, topLogprobs, model } = readCompletion({
    messages: [{ role: "developer", content: [{ type: "text", text: "Be " }, { type: "text", text: "brief" }] }, ...messages],
    max_completion_tokens: 9, temperature: 0.5, top_p: 0.9, seed: 7, stop: "\n", logprobs: true, top_logprobs: 2, n: 1, user: null,
    frequency_penalty: 1, presence_penalty: -1, logit_bias: { 5: -100 }, top_k: 4, min_p: 0.1, repetition_penalty: 1.1,
    mode: "reject", drafter: "model", k: 3, session: "s", response_format: { type: "json_schema", json_schema: { name: "x", strict: true, schema: { type: "array" } } },
  });
  assert.deepEqual([stream, includeUsage, topLogprobs, model], [false, false, 2, undefined]);
  assert.deepEqual(request, {
    messages: [{ role: "system", content: "Be brief" }, ...messages],
    max_tokens: 9, temperature: 0.5, top_p: 0.9, seed: 7, stop: ["\n"], logprobs: 2,
    frequency_penalty: 1, presence_penalty: -1, logit_bias: { 5: -100 }, top_k: 4, min_p: 0.1, repetition_penalty: 1.1,
    mode: "reject", drafter: "model", k: 3, schedule: "auto", session: "s", grammar: { type: "json_schema", schema: { type: "array" } },
  });
});
