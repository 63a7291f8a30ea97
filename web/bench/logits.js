// Logits of lists of ids on this machine's WebGPU device, for specdec-numerics, which compares them with a float32 model.
//
// Opened with ?bundle=URL&ids=URL[&encoding=base64]; ids.json and the parts that go to POST /rows are described in
// specdec_tools/numerics_parts.py. The outcome is window.benchResult and goes to POST /result. Knows no tokenizer and no reference.
// Invariants: every list starts afresh at position 0 and is fed by the widest verify program, as decoding does; logits stay the float32
// numbers of the device; parts are sent one after another; a row that is not finite ends the run.

import { asSpecdecError, DeviceFault } from "../executor/faults.js";
import { loadPlan } from "../executor/plan.js";
import { sha256 } from "../executor/sha256.js";
import { loadBundle } from "../worker/load.js";
import { report } from "./outcome.js";

const FORMAT = "specdec-rows";
// Bytes of a part: at most 12 MB, or 10 MB of base64 text.
const PART_BYTES = { raw: 12_000_000, base64: 7_400_000 };

/** @typedef {{ids: number[], first: number}} List rows from `first` on are wanted */
/** @typedef {import("../executor/types.js").Executor} Executor */
/** @typedef {import("../executor/types.js").PlanModel} PlanModel */

/** @param {Uint8Array} bytes @returns {string} */
function base64(bytes) {
  let text = "";
  const step = 3 * 8192; // a multiple of 3: no padding inside
  for (let at = 0; at < bytes.length; at += step) text += btoa(String.fromCharCode(...bytes.subarray(at, at + step)));
  return text;
}

/** Sends parts: the head, then rows, as many whole ones as a part holds. */
class Sender {
  /** @param {"raw" | "base64"} encoding @param {number} vocab */
  constructor(encoding, vocab) {
    this.encoding = encoding;
    this.vocab = vocab;
    this.part = 0;
    this.rows = new Float32Array(vocab * Math.max(1, Math.floor(PART_BYTES[encoding] / (4 * vocab))));
    this.used = 0;
  }

  /** @param {ArrayLike<number>} row */
  async add(row) {
    this.rows.set(row, this.used);
    this.used += this.vocab;
    if (this.used === this.rows.length) await this.flush();
  }

  async flush() {
    if (this.used) await this.send(new Uint8Array(this.rows.buffer, 0, 4 * this.used));
    this.used = 0;
  }

  /** @param {Uint8Array<ArrayBuffer>} payload */
  async send(payload) {
    const about = { format: FORMAT, part: this.part, bytes: payload.length, sha256: await sha256(payload) };
    const line = new TextEncoder().encode(`${JSON.stringify(about)}\n`);
    const bytes = new Uint8Array(line.length + payload.length);
    bytes.set(line);
    bytes.set(payload, line.length);
    // Line ends on both sides: whoever prints bodies may be in the middle of another line.
    const body = this.encoding === "raw" ? bytes : `\n${FORMAT} ${this.part} ${base64(bytes)}\n`;
    const answer = await fetch("/rows", { method: "POST", body });
    if (!answer.ok) throw new DeviceFault(`part ${this.part} was refused: ${answer.status}`, "/rows", "Look at the server's messages");
    this.part += 1;
  }
}

/**
 * One pass; the logits of its rows from `first` on.
 * @param {Executor} executor @param {PlanModel} model @param {number} start @param {number[]} ids @param {number} first
 * @returns {Promise<number[][]>}
 */
async function verify(executor, model, start, ids, first) {
  const { padded_vocab: padded, vocab_size: vocab } = model;
  const wanted = ids.length - first;
  /** @type {import("../executor/types.js").Read[]} */
  const reads = [["target.out", 0, 2 * ids.length]];
  if (wanted > 0) reads.push(["target.logits", first * padded, wanted * padded]);
  const { values } = await executor.submit({
    kind: "score",
    writes: [
      ["tokens", start, ids],
      ["target.page_table", 0, Array.from({ length: model.num_pages }, (_, page) => page)],
      ["target.args", 0, [start, ids.length, 0, 0]],
    ],
    calls: [`target.verify_${Math.max(...model.widths)}`],
    reads,
  });
  if (values[0].some((value, i) => i % 2 === 1 && value !== 1)) {
    throw new DeviceFault(`logits after position ${start} are not finite`, "target.out", "Try another device");
  }
  return Array.from({ length: Math.max(0, wanted) }, (_, i) => values[1].slice(i * padded, i * padded + vocab));
}

/** @param {URLSearchParams} query */
async function run(query) {
  const encoding = query.get("encoding") === "base64" ? "base64" : "raw";
  const url = (/** @type {string} */ name, /** @type {string} */ other) => new URL(query.get(name) ?? other, location.origin).href;
  const chosen = await (await fetch(url("ids", "/ids.json"))).json();
  // What is measured are the numbers of one program: the self-test, which compares programs, is for decoding.
  const { executor, planText } = await loadBundle(url("bundle", "/bundle/"), { backend: "webgpu", selftest: false }, () => {});
  const { ids: made, models } = loadPlan(planText);
  const model = models[0];
  const lists = /** @type {List[]} */ (chosen.lists);
  const total = lists.reduce((sum, { ids }) => sum + ids.length, 0);
  const device = { backend: executor.info.backend, adapter: executor.info.adapter, browser: navigator.userAgent };
  const head = { choice: chosen.choice, kernels: made.kernels, weights: made.weights, vocab_size: model.vocab_size, device };
  const sender = new Sender(encoding, model.vocab_size);
  await sender.send(new TextEncoder().encode(JSON.stringify(head)));
  const began = performance.now();
  const width = Math.max(...model.widths);
  let done = 0;
  for (const { ids, first } of lists) {
    for (let start = 0; start < ids.length; start += width) {
      const chunk = ids.slice(start, start + width);
      for (const row of await verify(executor, model, start, chunk, Math.max(0, first - start))) await sender.add(row);
      done += chunk.length;
      /** @type {any} */ (window).benchProgress = [done, total];
    }
  }
  await sender.flush();
  executor.close();
  return { device, parts: sender.part, rows: total, ms: performance.now() - began };
}

await report(run, (error) => ({ error: asSpecdecError(error, "web/bench/logits.js").toJson() }));
