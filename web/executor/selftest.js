// The self-test of a WebGPU device at load: do a row's bits depend on the rows beside it, or on its slot?
//
// Decides which passes to compare and what follows from it; does not know how they are run and compared (row_probe.js).
// Whole passes with the real weights and programs: the same positions by passes of other widths, in other slots, must give
// the same logits and the same K and V. Invariant: what a verdict trusts was compared here, on this device, at this load.

/** @typedef {import("./types.js").PlanModel} PlanModel */
/** @typedef {{program: string, start: number, rows: number}} Pass */
/** @typedef {{from: number, to: number}} Span */
/** @typedef {{position: number | null, tensor: string}} Difference position: of a logits row; null for K and V */
/**
 * @typedef {{
 *   feed: (passes: Pass[]) => void,
 *   remember: (span: Span, passes: Pass[]) => Promise<void>,
 *   differences: (span: Span, passes: Pass[], withLogits: boolean) => Promise<Difference[]>
 * }} Probe
 */
/** @typedef {{verify: "any" | "widest" | "plain", prefill: boolean}} Programs the policy of specdec_runtime/decode/programs.py */
/** @typedef {{verdict: string, passes: number, ms: number, mismatches: string[]}} Report */
/** @typedef {{width: number, offset: number}} Walk offset: rows of the first pass, where it is not a whole one */
/** @typedef {Span & {reference: Walk, others: Walk[], prefill: boolean}} Trial */

const SPLIT = 256; // attention splits its positions there: a multiple of the kernels' 128
const NEAR_SPLIT = { from: SPLIT - 8, to: SPLIT + 4 }; // 255, 256 and 257 lie in every slot of 8, with rows after them
const FIRST = { from: 0, to: 8 };
const MAX_TOLD = 6;

/** @type {Programs} */
export const ANY_PROGRAM = { verify: "any", prefill: true };

/** @param {string} verdict @returns {{report: Report, programs: Programs}} for a device that needs no test, or is not to have one */
export function untested(verdict) {
  return { report: { verdict, passes: 0, ms: 0, mismatches: [] }, programs: ANY_PROGRAM };
}

/** @param {Walk} walk @param {Span} span @returns {Pass[]} the verify passes of a walk over the span */
export function verifyPasses({ width, offset }, { from, to }) {
  const passes = [];
  for (let start = from, rows = offset || width; start < to; start += rows, rows = width) {
    rows = Math.min(rows, to - start);
    passes.push({ program: `target.verify_${width}`, start, rows });
  }
  return passes;
}

/** @param {PlanModel} model @param {Span} span @returns {Pass[]} chunks as decode/prefill.py cuts them, from the one that holds `from` */
export function prefillPasses({ prefill_width: width }, { from, to }) {
  const passes = [];
  for (let start = from - (from % width); start < to; start += width) {
    passes.push({ program: "target.prefill", start, rows: Math.min(width, to - start) });
  }
  return passes;
}

/** @param {number} width @returns {Walk[]} every slot at every position that has so many before it */
const everySlot = (width) => Array.from({ length: width }, (_, offset) => ({ width, offset }));

/**
 * What must agree so that the policy's rows can be trusted.
 * @param {PlanModel} model @param {Programs["verify"]} verify @param {boolean} reduced the first positions only, each slot once
 * @returns {Trial[]}
 */
export function trials(model, verify, reduced) {
  const widest = model.widths[model.widths.length - 1];
  const reference = { width: verify === "widest" ? widest : 1, offset: 0 };
  const rest = model.widths.slice(1);
  const others = {
    any: { first: rest.map((width) => ({ width, offset: 0 })), split: rest.flatMap(everySlot) },
    widest: { first: everySlot(widest).slice(1), split: everySlot(widest).slice(1) },
    plain: { first: [], split: [] },
  }[verify];
  const all = [{ ...FIRST, reference, others: others.first, prefill: reduced }];
  if (!reduced) {
    const chunk = { from: 0, to: Math.min(model.prefill_width, model.max_context) };
    const width = verify === "plain" ? 1 : widest; // every slot of the prefill program
    all.push({ ...chunk, reference: { width, offset: 0 }, others: [], prefill: true });
    all.push({ ...NEAR_SPLIT, reference, others: others.split, prefill: true });
  }
  return all.filter(({ to }) => to <= model.max_context);
}

class SelfTest {
  /** @param {Probe} probe @param {PlanModel} model @param {boolean} reduced @param {(done: number, total: number) => void} onProgress */
  constructor(probe, model, reduced, onProgress) {
    this.probe = probe;
    this.model = model;
    this.reduced = reduced;
    this.onProgress = onProgress;
    this.passes = 0;
    /** @type {string[]} */
    this.mismatches = [];
    this.walks = { done: 0, total: 0 };
  }

  /** @param {Pass[]} passes */
  count(passes) {
    this.passes += passes.length;
    this.walks.done += 1;
    this.onProgress(this.walks.done, this.walks.total);
  }

  /** @param {Trial} trial @param {Pass[]} passes @param {boolean} withLogits @returns {Promise<boolean>} */
  async agrees(trial, passes, withLogits) {
    const found = await this.probe.differences(trial, passes, withLogits);
    this.count(passes);
    if (found.length) this.mismatches.push(describe(found[0], passes, trial));
    return found.length === 0;
  }

  /** @param {Programs["verify"]} verify @returns {Promise<{rows: boolean, prefill: boolean}>} what agrees with the reference */
  async stage(verify) {
    let rowsAgree = true;
    let prefillAgrees = true;
    const all = trials(this.model, verify, this.reduced);
    this.walks.total += all.reduce((sum, { others, prefill }) => sum + 1 + others.length + Number(prefill), 0);
    for (const trial of all) {
      const { reference, others } = trial;
      const history = prefillPasses(this.model, { from: 0, to: trial.from });
      const remembered = verifyPasses(reference, trial);
      this.probe.feed(history);
      await this.probe.remember(trial, remembered);
      this.count([...history, ...remembered]);
      for (const walk of others) rowsAgree = (await this.agrees(trial, verifyPasses(walk, trial), true)) && rowsAgree;
      if (trial.prefill) prefillAgrees = (await this.agrees(trial, prefillPasses(this.model, trial), false)) && prefillAgrees;
    }
    return { rows: rowsAgree, prefill: prefillAgrees };
  }

  /** The first policy whose rows agree; width 1 alone needs nothing but itself. @returns {Promise<Programs>} */
  async policy() {
    for (const verify of /** @type {const} */ (["any", "widest", "plain"])) {
      const { rows, prefill } = await this.stage(verify);
      if (rows) return { verify, prefill };
    }
    throw new Error("a stage without other rows cannot fail");
  }
}

/** @param {Difference} difference @param {Pass[]} passes @param {Span} span @returns {string} */
function describe({ position, tensor }, passes, { from, to }) {
  const name = passes[passes.length - 1].program;
  if (position === null) return `${name}: ${tensor}, positions ${from} to ${to - 1}`;
  const pass = passes.find(({ start, rows }) => position >= start && position < start + rows) ?? passes[0];
  return `${name}: ${tensor}, position ${position} in slot ${position - pass.start} of ${pass.rows} rows`;
}

/**
 * @param {Probe} probe @param {PlanModel} model @param {boolean} reduced @param {(done: number, total: number) => void} onProgress
 * @returns {Promise<{report: Report, programs: Programs}>}
 */
export async function testRows(probe, model, reduced, onProgress) {
  const start = performance.now();
  const test = new SelfTest(probe, model, reduced, onProgress);
  const programs = await test.policy();
  const equal = reduced ? "reduced: row-invariant" : "row-invariant";
  const verdict = programs.verify === "any" ? equal : programs.verify;
  const told = test.mismatches.slice(0, MAX_TOLD);
  if (test.mismatches.length > MAX_TOLD) told.push(`and ${test.mismatches.length - MAX_TOLD} more`);
  const ms = Math.round(performance.now() - start);
  return { report: { verdict, passes: test.passes, ms, mismatches: told }, programs };
}
