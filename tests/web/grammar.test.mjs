// XGrammar after grammars that it cannot read: each ends an instance of it, and nothing of that instance stays.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { Matchers } from "../../web/worker/grammar.js";

const REFUSALS = 45; // one instance bears some 40
const MAX_GROWTH_MB = 20; // its text is 1.1 MB, its memory 16
const map = { bytes: (id) => Uint8Array.of(id) };
const asked = (text) => ({ form: "ebnf", text, stop_ids: [0], vocab_size: 128, row_words: 4 });

/** Bytes in use, garbage gone. */
async function inUse() {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  for (let i = 0; i < 3; i++) {
    collect();
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

test("refused grammars leave no memory, and the next one has its masks", async () => {
  globalThis.location = { href: import.meta.url }; // the engine takes a worker's address for granted
  const matchers = new Matchers(map);
  const first = async () => {
    const matcher = await matchers.open(asked('root ::= "yes" | [0-9]+ "!"'));
    const row = [...(await matcher.mask())];
    matcher.close();
    return row;
  };
  const refused = (i) =>
    assert.rejects(matchers.open(asked(`root ::= missing${i}`)), (error) => error.type === "RequestError" && error.message.includes(`missing${i}`));
  const expected = await first();
  await refused(0);
  assert.deepEqual(await first(), expected);
  const before = await inUse();
  for (let i = 1; i <= REFUSALS; i++) await refused(i);
  assert.deepEqual(await first(), expected);
  const growth = (await inUse()) - before;
  assert.ok(growth < MAX_GROWTH_MB * 1e6, `${Math.round(growth / 1e6)} MB after ${REFUSALS} refused grammars`);
  assert.equal("define" in globalThis, false);
});
