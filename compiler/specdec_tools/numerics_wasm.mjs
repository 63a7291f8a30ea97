// Teacher forcing of a bundle's kernels.wasm under Node, with the page's own executor, for specdec-numerics.
//
// node numerics_wasm.mjs BUNDLE: every line of stdin is a JSON list of ids; the answer on stdout is float32 [ids, vocab],
// row i predicting the id after ids[i]. Does not check hashes (its caller did), knows no tokenizer and no reference.

import { readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { WasmExecutor } from "../../web/executor/wasm.js";

/** @param {string} folder the executor with its weights in place, and the target model's sizes */
async function open(folder) {
  const plan = JSON.parse(readFileSync(join(folder, "plan.json"), "utf8"));
  const target = plan.targets.find((/** @type {any} */ item) => item.name === "cpu");
  const model = plan.models.find((/** @type {any} */ item) => item.role === "target");
  const executor = await WasmExecutor.create(target, new Uint8Array(readFileSync(join(folder, target.module))));
  target.buffers.forEach((/** @type {any} */ buffer, /** @type {number} */ index) => {
    let offset = 0;
    for (const path of buffer.files) {
      const bytes = readFileSync(join(folder, path));
      executor.weightSpace(index, offset, bytes.length).set(bytes);
      offset += bytes.length;
    }
  });
  return { executor, model };
}

/** @param {Uint8Array} bytes written whole: a pipe may take less at once */
function send(bytes) {
  for (let at = 0; at < bytes.length; ) at += writeSync(1, bytes, at);
}

/** @param {any} executor @param {any} model @param {number} start @param {number[]} ids */
function verify(executor, model, start, ids) {
  const width = Math.max(...model.widths);
  const { values } = executor.submit({
    kind: "score",
    writes: [
      ["tokens", start, ids],
      ["target.page_table", 0, Array.from({ length: model.num_pages }, (_, page) => page)],
      ["target.args", 0, [start, ids.length, 0, 0]],
    ],
    calls: [`target.verify_${width}`],
    reads: [["target.out", 0, 2 * ids.length]],
  });
  if (values[0].some((value, i) => i % 2 === 1 && value !== 1)) throw new Error(`not finite after position ${start}`);
  const logits = executor.tensors.get("target.logits");
  for (let row = 0; row < ids.length; row++) {
    const view = executor.view(logits, row * model.padded_vocab, model.vocab_size);
    send(new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
  }
}

const { executor, model } = await open(process.argv[2]);
for await (const line of createInterface({ input: process.stdin })) {
  const ids = JSON.parse(line);
  const width = Math.max(...model.widths);
  for (let start = 0; start < ids.length; start += width) verify(executor, model, start, ids.slice(start, start + width));
}
