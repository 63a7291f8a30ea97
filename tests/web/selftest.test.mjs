// The self-test's decisions, on a device of numbers whose rows can be made to depend on width, slot, neighbours or position.
import assert from "node:assert/strict";
import { test } from "node:test";

import { prefillPasses, testRows, trials, verifyPasses } from "../../web/executor/selftest.js";

const MODEL = /** @type {any} */ ({ max_context: 512, prefill_width: 32, page_size: 16, widths: [1, 2, 4, 8] });

const mix = (a, b) => (Math.imul(a ^ (b + 0x9e3779b9), 0x85ebca6b) ^ (a >>> 13)) >>> 0;

/** Rows as numbers: K and V of a position follow from those before it, logits from them; `wrong` says which are changed. */
class FakeDevice {
  constructor(wrong = {}) {
    this.wrong = { logits: () => 0, kv: () => 0, ...wrong };
    this.kv = new Map();
    this.expected = null;
    this.ran = [];
  }

  run(passes) {
    const logits = new Map();
    for (const { program, start, rows } of passes) {
      for (let slot = 0; slot < rows; slot++) {
        const position = start + slot;
        const where = { program, slot, rows, position };
        const before = this.kv.get(position - 1);
        assert.ok(position === 0 || before !== undefined, `position ${position} has no history`);
        this.kv.set(position, mix(before ?? 1, position) ^ this.wrong.kv(where));
        logits.set(position, mix(this.kv.get(position), 7) ^ this.wrong.logits(where));
      }
      this.ran.push({ program, start, rows });
    }
    return logits;
  }

  feed(passes) {
    this.run(passes);
  }

  pick(span, all) {
    return Array.from({ length: span.to - span.from }, (_, i) => all.get(span.from + i));
  }

  async remember(span, passes) {
    const logits = this.run(passes);
    this.expected = { logits: this.pick(span, logits), kv: this.pick(span, this.kv) };
  }

  async differences(span, passes, withLogits) {
    const logits = this.run(passes);
    const found = [];
    this.pick(span, logits).forEach((value, i) => {
      if (withLogits && value !== this.expected.logits[i]) found.push({ position: span.from + i, tensor: "target.logits" });
    });
    if (this.pick(span, this.kv).some((value, i) => value !== this.expected.kv[i])) found.push({ position: null, tensor: "kv" });
    return found;
  }
}

async function verdict(wrong, reduced = false, model = MODEL) {
  const device = new FakeDevice(wrong);
  const told = [];
  const { report, programs } = await testRows(device, model, reduced, (done, total) => told.push([done, total]));
  assert.equal(report.passes, device.ran.length);
  assert.ok(told.every(([done, total]) => done <= total) && told.at(-1)[0] === told.at(-1)[1], "progress ends at its end");
  return { ...report, programs };
}

const width = (where) => (where.program.startsWith("target.verify_") ? Number(where.program.split("_")[1]) : 0);

test("a device whose rows are equal", async () => {
  const full = await verdict({});
  assert.deepEqual([full.verdict, full.programs, full.mismatches], ["row-invariant", { verify: "any", prefill: true }, []]);
  assert.ok(full.passes < 100, `${full.passes} passes take too long`);
  const reduced = await verdict({}, true);
  assert.equal(reduced.verdict, "reduced: row-invariant");
  assert.ok(reduced.passes < 20);
});

test("one width that adds in another order leaves the widest program", async () => {
  for (const changed of [2, 4]) {
    for (const what of ["logits", "kv"]) {
      for (const reduced of [false, true]) {
        const found = await verdict({ [what]: (where) => Number(width(where) === changed) }, reduced);
        assert.deepEqual([found.verdict, found.programs], ["widest", { verify: "widest", prefill: found.programs.prefill }]);
        assert.equal(found.programs.prefill, true);
        assert.match(found.mismatches[0], new RegExp(`^target.verify_${changed}: `));
      }
    }
  }
});

test("width 1 that differs from all others leaves the widest, and prefill that agrees with it", async () => {
  const found = await verdict({ kv: (where) => Number(width(where) === 1) });
  assert.deepEqual(found.programs, { verify: "widest", prefill: true });
});

test("slots of the widest program that differ leave width 1, whatever the others do", async () => {
  for (const slot of [0, 1, 6, 7]) {
    for (const what of ["logits", "kv"]) {
      for (const reduced of [false, true]) {
        const found = await verdict({ [what]: (where) => Number(width(where) === 8 && where.slot === slot) }, reduced);
        assert.deepEqual([found.verdict, found.programs.verify], ["plain", "plain"], `${what} of slot ${slot}`);
      }
    }
  }
});

test("rows that depend on how many are valid beside them", async () => {
  const found = await verdict({ logits: (where) => Number(width(where) === 8 && where.rows < 8 && where.slot === 2) });
  assert.equal(found.verdict, "plain");
});

test("rows that differ at one position near the attention's split only, in one slot of one width", async () => {
  for (const position of [255, 256, 257]) {
    for (const [changed, slot] of [[2, 0], [2, 1], [4, 0], [4, 3], [8, 0], [8, 4], [8, 7]]) {
      const wrong = { logits: (where) => Number(where.position === position && width(where) === changed && where.slot === slot) };
      const found = await verdict(wrong);
      assert.equal(found.verdict, changed === 8 ? "plain" : "widest", `${position} ${changed} ${slot}`);
      assert.match(found.mismatches[0], new RegExp(`position ${position} in slot ${slot} of`));
    }
  }
});

test("a prefill program that disagrees is not used", async () => {
  for (const reduced of [false, true]) {
    const found = await verdict({ kv: (where) => Number(where.program === "target.prefill") }, reduced);
    assert.deepEqual(found.programs, { verify: "any", prefill: false });
    assert.match(found.mismatches[0], /^target.prefill: kv/);
  }
  for (let slot = 0; slot < 32; slot++) {
    const found = await verdict({ kv: (where) => Number(where.program === "target.prefill" && where.slot === slot && where.position < 32) });
    assert.equal(found.programs.prefill, false, `slot ${slot}`);
  }
  const both = await verdict({
    kv: (where) => Number(where.program === "target.prefill"),
    logits: (where) => Number(width(where) === 8 && where.slot === 5),
  });
  assert.deepEqual(both.programs, { verify: "plain", prefill: false });
  const widest = await verdict({ kv: (where) => Number(where.program === "target.prefill" || width(where) === 2) });
  assert.deepEqual(widest.programs, { verify: "widest", prefill: false });
});

test("every slot of every width meets the split, with rows after it where there can be", () => {
  const split = trials(MODEL, "any", false).at(-1);
  for (const position of [255, 256, 257]) {
    for (const one of [2, 4, 8]) {
      const slots = split.others.filter((walk) => walk.width === one).map((walk) => {
        const passes = verifyPasses(walk, split);
        assert.deepEqual(passes.map(({ rows }) => rows).reduce((a, b) => a + b), split.to - split.from);
        return position - passes.find(({ start, rows }) => position >= start && position < start + rows).start;
      });
      assert.deepEqual([...new Set(slots)].sort((a, b) => a - b), Array.from({ length: one }, (_, slot) => slot));
    }
  }
});

test("chunks are those of the decode core", () => {
  const chunk = (start, rows) => ({ program: "target.prefill", start, rows });
  assert.deepEqual(prefillPasses(MODEL, { from: 0, to: 70 }), [chunk(0, 32), chunk(32, 32), chunk(64, 6)]);
  assert.deepEqual(prefillPasses(MODEL, { from: 40, to: 70 }), [chunk(32, 32), chunk(64, 6)]);
  assert.deepEqual(prefillPasses(MODEL, { from: 0, to: 0 }), []);
});

test("contexts and widths that are small", async () => {
  for (const change of [{ max_context: 64 }, { max_context: 16 }, { widths: [1] }, { widths: [1, 3] }, { prefill_width: 1 }]) {
    const found = await verdict({}, false, { ...MODEL, ...change });
    assert.deepEqual(found.programs, { verify: "any", prefill: true });
  }
});
