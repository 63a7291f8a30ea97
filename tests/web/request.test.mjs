// The fields of `generate` in the page: what is refused before it leaves, by which name, and what goes to the worker.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { RequestError } from "../../web/executor/faults.js";
import { Client } from "../../web/page/client.js";
import { OPTIONS, withDefaults } from "../../web/request.js";
import { log } from "./fake_worker.mjs";

const messages = [{ role: "user", content: "Hi" }];
let client;

beforeEach(async () => {
  client = new Client();
  await client.load("bundle/");
  log.length = 0;
});
afterEach(() => clearTimeout(client.timer));

const deep = {};
deep.self = deep;

for (const [name, value, said] of [
  ["eos_ids", [5], "eos_ids is not supported"],
  ["max_new_tokens", 5, "max_new_tokens is not supported"],
  ["id", 7, "id is not supported"],
  ["op", "load", "op is not supported"],
  ["temperature", NaN, "temperature is NaN"],
  ["k", Infinity, "k is Infinity"],
  ["logit_bias", { 5: NaN }, "logit_bias is NaN"],
  ["seed", 5n, "seed is a BigInt"],
  ["grammar", { type: "json_schema", schema: { default: () => 1 } }, "grammar holds a function"],
  ["grammar", Symbol("x"), "grammar holds a symbol"],
  ["grammar", deep, "grammar is no JSON"],
]) {
  test(`${name} that cannot be served: ${said}`, async () => {
    await assert.rejects(client.generate({ messages, max_tokens: 1, [name]: value }), (error) => {
      return error instanceof RequestError && error.where === name && error.message.startsWith(said) && error.action !== "";
    });
    assert.deepEqual(log, []);
    const next = await client.generate({ messages, max_tokens: 1 });
    assert.equal(next.text, "a");
  });
}

test("null is as if left out, and what is given goes on as it is", async () => {
  await client.generate({ messages, max_tokens: 1, k: null, drafter: undefined, unknown: null, temperature: 0.5 });
  const { id, ...sent } = log[0];
  assert.equal(typeof id, "number");
  assert.deepEqual(sent, { op: "generate", messages, max_tokens: 1, temperature: 0.5 });
});

test("what is left out or null has its default, in the worker too", () => {
  const several = { plain_steps: 8, rounds: 2 };
  const bare = { max_tokens: 256, drafter: "ngram", k: 4, schedule: "fixed", ...several };
  const nothing = Object.fromEntries(Object.keys(bare).map((name) => [name, null]));
  assert.deepEqual(withDefaults({}, several), bare);
  assert.deepEqual(withDefaults(nothing, several), bare);
  assert.deepEqual(withDefaults({ rounds: 1, k: 0 }, several), { ...bare, rounds: 1, k: 0 });
});

test("what cannot be cloned is the request's fault elsewhere too", async () => {
  await assert.rejects(client.score({ prompt: () => "x" }), (error) => error instanceof RequestError && error.where === "request");
});

test("no option is named twice", () => {
  assert.equal(new Set(OPTIONS).size, OPTIONS.length);
});
