// The WebGPU executor: one submit is one mapped readback; one that feeds tokens and reads nothing may run ahead: it is answered
// as soon as the one before it is done. While the device works, the commands of the next submit of the same kind are made.
//
// Does not know: what the kernels compute, who asks. Invariants: buffers, pipelines, bind groups and dispatch lists
// are made once, before the first submit (on software adapters before the first that needs them); a submit waits on the device for a
// bounded time and ends in values or a DeviceFault; at most two submits are on the device, and a fault of one that ran ahead is thrown by
// whatever waits next; WebGPU zero-fills new buffers, so KV and state begin as zeros.

import { CallTimer, MAX_TIMED_CALLS, stampedTimes, wholeTime } from "./call_timer.js";
import { ContractError, DeviceFault } from "./faults.js";
import { alignUp, hostRange, hostTensors, megabytes, memoryPlan, toNumbers } from "./layout.js";
import { Programs } from "./pipelines.js";
import { WatchedDevice } from "./device.js";

/** @typedef {import("./types.js").PlanTarget} PlanTarget */
/** @typedef {import("./types.js").Submit} Submit */
/** @typedef {import("./types.js").Readback} Readback */

const ANSWER_MS = 60000;
const SOFTWARE_ANSWER_MS = 600000; // a software adapter may need minutes for what a GPU does in milliseconds
const PLAIN_STEPS = 8; // docs/performance.md
const ROUNDS = 8; // of the draft model in one submit: the most; 32 rows in all
const PART = 96; // dispatches of one command buffer: more leave the device waiting for the browser, fewer cost it more time (docs/performance.md)
const MAX_PREPARED = 64; // kinds of submit; a request has some ten

export class WebGpuExecutor {
  /** @param {WatchedDevice} watched @param {PlanTarget} target @param {Uint8Array} module */
  constructor(watched, target, module) {
    /** @type {import("./types.js").Executor["info"]} */
    this.info = { backend: "webgpu", adapter: watched.adapter.text };
    this.watched = watched;
    this.device = watched.device;
    this.target = target;
    this.module = module;
    this.tensors = hostTensors(target);
    this.answerMs = watched.adapter.software ? SOFTWARE_ANSWER_MS : ANSWER_MS;
    this.plainSteps = watched.adapter.software ? 1 : PLAIN_STEPS;
    this.rounds = watched.adapter.software ? 1 : ROUNDS;
    this.isAsync = true;
    this.timer = watched.hasTimestamps ? new CallTimer(this.device) : null;
    /** @type {import("./types.js").Executor["timing"]} */
    this.timing = watched.adapter.software ? "none" : this.timer ? "calls" : "submits";
    /** @type {GPUBuffer[]} */
    this.buffers = [];
    /** @type {Map<string, import("./pipelines.js").Dispatch[]>} */
    this.programs = new Map();
    /** @type {Programs | null} */
    this.maker = null;
    /** @type {GPUBuffer | null} */
    this.staging = null;
    /** Commands of submits like those before, made while the device was busy. @type {Map<string, GPUCommandBuffer[]>} */
    this.prepared = new Map();
    /** The work of the last submit that ran ahead, until somebody waited for it. @type {Promise<unknown> | null} */
    this.ahead = null;
  }

  /**
   * @param {GPUAdapter} adapter @param {PlanTarget} target @param {Uint8Array} module
   * @param {{timestamps: boolean, dot?: import("./dot.js").DotKind}} options
   * @returns {Promise<WebGpuExecutor>}
   */
  static async create(adapter, target, module, options) {
    const watched = await WatchedDevice.create(adapter, target, options.timestamps);
    watched.dot = options.dot ?? watched.dot;
    const executor = new WebGpuExecutor(watched, target, module);
    await executor.makeBuffers();
    return executor;
  }

  async makeBuffers() {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const make = () =>
      this.target.buffers.map(({ name, bytes }) => this.device.createBuffer({ label: name, size: alignUp(bytes, 4), usage }));
    try {
      this.buffers = await this.watched.checked("GPU memory", make);
    } catch (error) {
      const need = `${megabytes(memoryPlan(this.target).total)} of GPU memory are needed`;
      throw new DeviceFault(`${need}: ${/** @type {Error} */ (error).message}`, "GPU memory", "Use a smaller model");
    }
  }

  weightSpace(/** @type {number} */ _buffer, /** @type {number} */ _offset, /** @type {number} */ bytes) {
    return new Uint8Array(alignUp(bytes, 4)).subarray(0, bytes);
  }

  /** @param {number} buffer @param {number} offset @param {Uint8Array<ArrayBuffer>} space */
  weightsArrived(buffer, offset, space) {
    this.device.queue.writeBuffer(this.buffers[buffer], offset, space.buffer, 0, space.buffer.byteLength);
  }

  /**
   * All is compiled before the first token, but on a software adapter: it takes a minute for all programs, so each is made when it is
   * first called, and only their text is checked here.
   * @param {(done: number, total: number) => void} onProgress
   */
  async ready(onProgress) {
    this.maker = new Programs(this.watched, this.target, this.module, this.buffers);
    if (this.watched.adapter.software) await this.maker.check(onProgress);
    else await this.make(this.target.programs.map(({ name }) => name), onProgress);
  }

  /** Those of the programs that are not there yet. @param {string[]} names @param {(done: number, total: number) => void} [onProgress] */
  async make(names, onProgress = () => {}) {
    const missing = names.filter((name) => !this.programs.has(name));
    for (const [name, dispatches] of (await this.maker?.make(missing, onProgress)) ?? []) {
      this.programs.set(name, dispatches);
    }
  }

  /** @param {number} bytes @returns {GPUBuffer} the mappable buffer of readbacks, grown when needed */
  stagingOf(bytes) {
    if (this.staging && this.staging.size >= bytes) return this.staging;
    this.staging?.destroy();
    this.prepared.clear(); // their copies went there
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    this.staging = this.device.createBuffer({ label: "readback", size: alignUp(Math.max(bytes, 4096), 256), usage });
    return this.staging;
  }

  /** @param {string} call @returns {import("./pipelines.js").Dispatch[]} */
  dispatchesOf(call) {
    const dispatches = this.programs.get(call);
    if (!dispatches) throw new ContractError(`there is no program "${call}"`, "submit");
    return dispatches;
  }

  /** @param {GPUComputePassEncoder} pass @param {string} call */
  encode(pass, call) {
    encodeAll(pass, this.dispatchesOf(call));
  }

  /**
   * @param {GPUCommandEncoder} encoder @param {import("./types.js").Read[]} reads
   * @param {import("./layout.js").HostTensor[]} ranges @param {GPUBuffer} staging
   */
  encodeReads(encoder, reads, ranges, staging) {
    let at = 0;
    reads.forEach(([, offset, count], i) => {
      const { buffer, offset: start } = ranges[i];
      encoder.copyBufferToBuffer(this.buffers[buffer], start + 4 * offset, staging, at, 4 * count);
      at += 4 * count;
    });
  }

  /**
   * The commands of a submit, in parts: the device works on one while the browser hands it the next. A pass each for calls that are timed.
   * @param {Submit} batch @param {import("./layout.js").HostTensor[]} ranges @param {GPUBuffer | null} staging
   * @param {number | null} timesAt where times go in staging, if they are taken
   * @returns {GPUCommandBuffer[]}
   */
  record({ calls, reads }, ranges, staging, timesAt) {
    const timed = timesAt !== null;
    const lists = calls.map((call) => this.dispatchesOf(call));
    const parts = timed ? [lists] : cut(lists.flat()).map((part) => [part]);
    return parts.map((passes, i) => {
      const encoder = this.device.createCommandEncoder();
      passes.forEach((dispatches, call) => {
        const pass = encoder.beginComputePass(timed ? this.timer?.pass(call) : undefined);
        encodeAll(pass, dispatches);
        pass.end();
      });
      if (staging && i === parts.length - 1) this.encodeReads(encoder, reads, ranges, staging);
      if (staging && timed) this.timer?.resolve(encoder, calls.length, staging, timesAt);
      return encoder.finish();
    });
  }

  /** @param {Submit} batch */
  write(batch) {
    for (const [name, offset, values] of batch.writes) {
      const tensor = hostRange(this.tensors, name, offset, values.length);
      const data = tensor.isFloat ? Float32Array.from(values) : Int32Array.from(values);
      this.device.queue.writeBuffer(this.buffers[tensor.buffer], tensor.offset + 4 * offset, data);
    }
  }

  /** @param {Promise<unknown>} asked @param {string} [what] */
  async done(asked, what = "submit") {
    await this.watched.answer(this.watched.poked(asked), this.answerMs, what);
    if (this.watched.fault) throw this.watched.fault;
  }

  /** Waits until the device has done all that it was given. A fault of a submit that ran ahead is thrown here. */
  async settle() {
    const { ahead } = this;
    this.ahead = null;
    if (ahead) await this.done(ahead);
  }

  /**
   * Feeding tokens: nobody waits for numbers, so the next submit can be made while the device works. A submit that is timed
   * has times to read; on a software adapter there is nothing to gain, and what is under way cannot be cancelled.
   * @param {Submit} batch
   */
  mayRunAhead({ kind, reads }) {
    return (kind === "prefill" || kind === "draft") && reads.length === 0 && !this.timer && !this.watched.adapter.software;
  }

  /** @param {Submit} batch @returns {Promise<Readback>} */
  async submit(batch) {
    if (this.watched.fault) throw this.watched.fault;
    if (!batch.calls.every((call) => this.programs.has(call))) await this.make(batch.calls);
    const runsAhead = this.mayRunAhead(batch);
    const started = performance.now();
    const { reads } = batch;
    const calls = batch.calls.length;
    const ranges = reads.map(([name, offset, count]) => hostRange(this.tensors, name, offset, count));
    const timed = this.timer !== null && calls > 0 && calls <= MAX_TIMED_CALLS;
    const timesAt = alignUp(4 * reads.reduce((sum, [, , count]) => sum + count, 0), 8);
    const bytes = timesAt + (timed ? 16 * calls : 0);
    const staging = bytes ? this.stagingOf(bytes) : null;
    const record = () => this.record(batch, ranges, staging, timed ? timesAt : null);
    const kind = `${batch.calls}|${reads}`;
    const commands = this.prepared.get(kind) ?? record();
    this.prepared.delete(kind); // a command buffer runs once
    this.write(batch);
    for (const part of commands) {
      this.device.queue.submit([part]);
    }
    // a map waits for work that touches its buffer only
    const mine = staging ? staging.mapAsync(GPUMapMode.READ, 0, bytes) : this.device.queue.onSubmittedWorkDone();
    mine.catch(() => {}); // whoever waits for it hears it
    if (this.prepared.size >= MAX_PREPARED) this.prepared.clear();
    if (!timed) this.prepared.set(kind, record());
    const asked = runsAhead ? this.ahead : Promise.all([this.ahead, mine]);
    this.ahead = runsAhead ? mine : null;
    if (asked) await this.done(asked);
    if (!staging) return { values: [], ms: wholeTime(calls, performance.now() - started) };
    const mapped = staging.getMappedRange(0, bytes).slice(0);
    staging.unmap();
    const ms = timed ? stampedTimes(calls, mapped, timesAt) : wholeTime(calls, performance.now() - started);
    return { values: split(mapped, reads, ranges), ms };
  }

  close() {
    this.watched.close();
  }
}

/** @param {GPUComputePassEncoder} pass @param {import("./pipelines.js").Dispatch[]} dispatches */
function encodeAll(pass, dispatches) {
  let current = null;
  for (const { pipeline, group, grid } of dispatches) {
    if (pipeline !== current) pass.setPipeline(pipeline);
    current = pipeline;
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
  }
}

/** Even parts of about PART dispatches; one empty part of nothing, which may have reads. @template T @param {T[]} all @returns {T[][]} */
function cut(all) {
  const count = Math.max(1, Math.round(all.length / PART));
  const size = Math.ceil(all.length / count);
  return Array.from({ length: count }, (_, i) => all.slice(i * size, (i + 1) * size));
}

/**
 * @param {ArrayBuffer} mapped @param {import("./types.js").Read[]} reads
 * @param {import("./layout.js").HostTensor[]} ranges
 * @returns {number[][]}
 */
function split(mapped, reads, ranges) {
  let at = 0;
  return reads.map(([, , count], i) => {
    const values = new (ranges[i].isFloat ? Float32Array : Int32Array)(mapped, at, count);
    at += 4 * count;
    return toNumbers(values);
  });
}
