// The strict plan reader on the fixtures that the Python reader is tested on: the same verdicts, the same paths.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { ArtifactError } from "../../web/executor/faults.js";
import { loadPlan } from "../../web/executor/plan.js";

const FIXTURES = new URL("../fixtures/plan/", import.meta.url);
const read = (path) => readFileSync(new URL(path, FIXTURES), "utf8");
const index = JSON.parse(read("index.json"));

test("there are fixtures", () => {
  assert.ok(index.good.length >= 5 && index.bad.length >= 40);
});

for (const path of index.good) {
  test(`reads ${path}`, () => {
    const text = read(path);
    assert.deepEqual(JSON.parse(JSON.stringify(loadPlan(text))), JSON.parse(text));
  });
}

for (const { file, path } of index.bad) {
  test(`refuses ${file} at ${path}`, () => {
    assert.throws(() => loadPlan(read(file)), (error) => {
      assert.ok(error instanceof ArtifactError, `${error}`);
      assert.equal(error.where, path);
      return true;
    });
  });
}
