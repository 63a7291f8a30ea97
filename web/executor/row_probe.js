// Runs passes of the target for the self-test and compares their rows on the device, bit for bit.
//
// Does not know which passes must agree (selftest.js). Logits and KV stay on the device: a small kernel counts the words that
// differ, only the counts are read. One queue.submit a pass, one readback a walk. Invariant: after `close` the device is as a
// load leaves it: state and KV hold zeros, nothing of the probe is left.

import { ArtifactError } from "./faults.js";
import { alignUp } from "./layout.js";

/** @typedef {import("./webgpu.js").WebGpuExecutor} WebGpuExecutor */
/** @typedef {import("./types.js").PlanModel} PlanModel */
/** @typedef {import("./selftest.js").Pass} Pass */
/** @typedef {import("./selftest.js").Span} Span */
/** @typedef {import("./selftest.js").Difference} Difference */
/** @typedef {{name: string, buffer: number, offset: number, start: number, pageBytes: number, at: number}} Paged K or V of a layer: it begins at byte
 * `start` of its tensor; at: its place in the memory of KV */

const SHADER = new URL("compare.wgsl", import.meta.url);
const MAX_ROWS = 16; // of a span whose logits are compared
const MAX_SPAN = 64; // positions of a span
const JOB_BYTES = 256; // one dynamic offset apart
const MAX_GROUPS = 1024;
const COMPILE_MS = 180000;

/** @returns {Promise<string>} */
async function shaderText() {
  const response = await fetch(SHADER, { cache: "no-cache" });
  if (response.ok) return response.text();
  throw new ArtifactError("the self-test's shader is missing", SHADER.href, "Serve the whole web folder");
}

export class RowProbe {
  /** @param {WebGpuExecutor} executor @param {PlanModel} model */
  constructor(executor, model) {
    this.executor = executor;
    this.model = model;
    this.device = executor.device;
    const { target } = executor;
    this.maxPages = Math.ceil(MAX_SPAN / model.page_size) + 1;
    this.kvBytes = 0;
    /** @type {Paged[]} */
    this.kv = [];
    for (const { name, buffer, offset, shape } of target.tensors) {
      if (target.buffers[buffer].lifetime !== "kv" || !name.startsWith("target.")) continue;
      const bytes = executor.tensors.get(name)?.bytes ?? 0;
      const parts = shape.length > 1 ? 2 : 1; // [K and V, page, ...]: the bytes of a page of each lie together
      const pageBytes = bytes / parts / model.num_pages;
      for (let part = 0; part < parts; part++) {
        this.kv.push({ name, buffer, offset, start: (part * bytes) / parts, pageBytes, at: this.kvBytes });
        this.kvBytes += alignUp(this.maxPages * pageBytes, 256);
      }
    }
    /** @type {GPUBuffer[]} */
    this.made = [];
  }

  /** @param {WebGpuExecutor} executor @param {PlanModel} model @returns {Promise<RowProbe>} */
  static async create(executor, model) {
    const probe = new RowProbe(executor, model);
    const code = await shaderText();
    await executor.make([...model.widths.map((width) => `target.verify_${width}`), "target.prefill"]);
    await executor.watched.checked("self-test", () => probe.makeBuffers());
    await probe.makeGroups(code);
    probe.fill();
    return probe;
  }

  makeBuffers() {
    const { STORAGE, COPY_DST, COPY_SRC, UNIFORM } = GPUBufferUsage;
    const make = (/** @type {string} */ label, /** @type {number} */ size, /** @type {number} */ usage) => {
      const buffer = this.device.createBuffer({ label: `self-test ${label}`, size, usage });
      this.made.push(buffer);
      return buffer;
    };
    this.logits = make("logits", 4 * MAX_ROWS * this.model.padded_vocab, STORAGE | COPY_DST);
    this.pages = make("kv", this.kvBytes, STORAGE | COPY_DST);
    this.counts = make("counts", 4 * (MAX_ROWS + this.kv.length), STORAGE | COPY_DST | COPY_SRC);
    this.jobs = make("jobs", JOB_BYTES * (1 + this.kv.length), UNIFORM | COPY_DST);
  }

  /** @param {string} code */
  async makeGroups(code) {
    const { device, executor } = this;
    const visibility = GPUShaderStage.COMPUTE;
    /** @type {GPUBufferBindingLayout[]} */
    const kinds = [
      { type: "read-only-storage" },
      { type: "read-only-storage" },
      { type: "storage" },
      { type: "uniform", hasDynamicOffset: true, minBindingSize: 24 },
    ];
    const entries = kinds.map((buffer, binding) => ({ binding, visibility, buffer }));
    const layout = device.createBindGroupLayout({ label: "self-test", entries });
    const module = device.createShaderModule({ label: "compare", code });
    const pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
    const compute = { module, entryPoint: "compare" };
    const made = device.createComputePipelineAsync({ label: "compare", layout: pipelineLayout, compute });
    this.pipeline = await executor.watched.answer(made, COMPILE_MS, "self-test");
    const group = (/** @type {GPUBufferBinding} */ found, /** @type {GPUBufferBinding} */ expected) => {
      const counts = { buffer: /** @type {GPUBuffer} */ (this.counts) };
      const job = { buffer: /** @type {GPUBuffer} */ (this.jobs), size: 24 };
      const resources = [found, expected, counts, job];
      return device.createBindGroup({ layout, entries: resources.map((resource, binding) => ({ binding, resource })) });
    };
    const logits = this.place("target.logits");
    this.logitsGroup = group(logits, { buffer: /** @type {GPUBuffer} */ (this.logits) });
    this.kvGroups = this.kv.map(({ name, pageBytes, at }) => {
      return group(this.place(name), { buffer: /** @type {GPUBuffer} */ (this.pages), offset: at, size: this.maxPages * pageBytes });
    });
  }

  /** @param {string} name @returns {{buffer: GPUBuffer, offset: number, size: number}} where a tensor lies */
  place(name) {
    const tensor = this.executor.tensors.get(name);
    if (!tensor) throw new ArtifactError(`the plan has no tensor ${name}`, "plan.json", "Build the bundle again");
    return { buffer: this.executor.buffers[tensor.buffer], offset: tensor.offset, size: alignUp(tensor.bytes, 4) };
  }

  /** Tokens without a pattern and pages in order: every request writes its own. */
  fill() {
    const { max_context: context, num_pages: pages, vocab_size: vocab } = this.model;
    const length = Math.min(context, 512);
    const tokens = Array.from({ length }, (_, i) => Math.floor((((i + 1) * 0.6180339887498949) % 1) * vocab));
    const table = Array.from({ length: pages }, (_, i) => i);
    this.write([["tokens", 0, tokens], ["target.page_table", 0, table]]);
  }

  /** @param {import("./types.js").Write[]} writes */
  write(writes) {
    this.executor.write({ kind: "verify", writes, calls: [], reads: [] });
  }

  /** @param {Pass} pass @param {(encoder: GPUCommandEncoder) => void} [after] one pass, and what the same submit does after it */
  run({ program, start, rows }, after = () => {}) {
    this.write([["target.args", 0, [start, rows, 0, 0]]]);
    const encoder = this.device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    this.executor.encode(pass, program);
    pass.end();
    after(encoder);
    this.device.queue.submit([encoder.finish()]);
  }

  /** @param {Pass[]} passes a history, compared with nothing; nobody waits for it */
  feed(passes) {
    for (const pass of passes) this.run(pass);
  }

  /** @param {Span} span @returns {[number, number]} its first page, and how many */
  pagesOf({ from, to }) {
    const size = this.model.page_size;
    const first = Math.floor(from / size);
    return [first, Math.ceil(to / size) - first];
  }

  /** What the passes give for the span is expected from now on. @param {Span} span @param {Pass[]} passes */
  async remember(span, passes) {
    const { buffer, offset } = this.place("target.logits");
    const rowBytes = 4 * this.model.padded_vocab;
    for (const pass of passes) {
      this.run(pass, (encoder) => {
        const row = pass.start - span.from;
        const rows = Math.min(pass.rows, MAX_ROWS - row);
        if (rows > 0) encoder.copyBufferToBuffer(buffer, offset, /** @type {GPUBuffer} */ (this.logits), row * rowBytes, rows * rowBytes);
      });
    }
    const encoder = this.device.createCommandEncoder();
    const [first, count] = this.pagesOf(span);
    for (const { buffer, offset, start, pageBytes, at } of this.kv) {
      const pages = /** @type {GPUBuffer} */ (this.pages);
      encoder.copyBufferToBuffer(this.executor.buffers[buffer], offset + start + first * pageBytes, pages, at, count * pageBytes);
    }
    this.device.queue.submit([encoder.finish()]);
    await this.readCounts();
  }

  /** @param {number} index @param {number[]} job the fields of the shader's Job */
  writeJob(index, job) {
    this.device.queue.writeBuffer(/** @type {GPUBuffer} */ (this.jobs), index * JOB_BYTES, Uint32Array.from(job));
  }

  /** @param {GPUCommandEncoder} encoder @param {GPUBindGroup[]} groups @param {number} firstJob @param {number} words of the longest */
  compare(encoder, groups, firstJob, words) {
    const pass = encoder.beginComputePass();
    pass.setPipeline(/** @type {GPUComputePipeline} */ (this.pipeline));
    groups.forEach((group, i) => {
      pass.setBindGroup(0, group, [(firstJob + i) * JOB_BYTES]);
      pass.dispatchWorkgroups(Math.min(Math.ceil(words / 256), MAX_GROUPS));
    });
    pass.end();
  }

  /**
   * Runs the passes and compares what they give for the span with what is expected.
   * @param {Span} span @param {Pass[]} passes @param {boolean} withLogits
   * @returns {Promise<Difference[]>}
   */
  async differences(span, passes, withLogits) {
    const { padded_vocab: columns, vocab_size: used } = this.model;
    const [first, count] = this.pagesOf(span);
    this.kv.forEach(({ start, pageBytes }, i) => {
      const words = (count * pageBytes) / 4;
      this.writeJob(1 + i, [(start + first * pageBytes) / 4, 0, words, words, words, MAX_ROWS + i]);
    });
    for (const pass of passes) {
      const row = pass.start - span.from;
      if (withLogits) this.writeJob(0, [0, row * columns, pass.rows * columns, columns, used, row]);
      this.run(pass, (encoder) => {
        if (withLogits) this.compare(encoder, [/** @type {GPUBindGroup} */ (this.logitsGroup)], 0, pass.rows * columns);
      });
    }
    const encoder = this.device.createCommandEncoder();
    const longest = Math.max(...this.kv.map(({ pageBytes }) => (count * pageBytes) / 4));
    this.compare(encoder, this.kvGroups ?? [], 1, longest);
    this.device.queue.submit([encoder.finish()]);
    const counts = await this.readCounts();
    /** @type {Difference[]} */
    const logits = Array.from({ length: MAX_ROWS }, (_, row) => ({ position: span.from + row, tensor: "target.logits" }));
    const all = [...logits, ...this.kv.map(({ name }) => ({ position: null, tensor: name }))];
    return all.filter((_, i) => counts[i] !== 0);
  }

  /** Waits for everything submitted; the counts, which start again at 0. @returns {Promise<Uint32Array>} */
  async readCounts() {
    const { executor } = this;
    const counts = /** @type {GPUBuffer} */ (this.counts);
    const staging = executor.stagingOf(counts.size);
    const bytes = alignUp(counts.size, 8);
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(counts, 0, staging, 0, counts.size);
    encoder.clearBuffer(counts);
    this.device.queue.submit([encoder.finish()]);
    await executor.done(staging.mapAsync(GPUMapMode.READ, 0, bytes), "self-test");
    const values = new Uint32Array(staging.getMappedRange(0, bytes).slice(0));
    staging.unmap();
    return values;
  }

  close() {
    const { target, buffers } = this.executor;
    const encoder = this.device.createCommandEncoder();
    target.buffers.forEach(({ lifetime }, i) => {
      if (lifetime === "state" || lifetime === "kv") encoder.clearBuffer(buffers[i]);
    });
    this.device.queue.submit([encoder.finish()]);
    for (const buffer of this.made) buffer.destroy();
  }
}
