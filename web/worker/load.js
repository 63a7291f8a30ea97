// Loading a bundle: which backend, what to download, where the bytes go, all at once where it can be.
//
// Does not know: Python, requests. Invariants: the memory is counted and told before any weight is downloaded; every
// file's hash is checked; each weight buffer is exactly as long as its files together.

import { Bundle } from "../executor/bundle.js";
import { findAdapter } from "../executor/device.js";
import { ArtifactError, DeviceFault, RequestError } from "../executor/faults.js";
import { memoryPlan } from "../executor/layout.js";
import { loadPlan } from "../executor/plan.js";
import { RowProbe } from "../executor/row_probe.js";
import { testRows, untested } from "../executor/selftest.js";
import { WasmExecutor } from "../executor/wasm.js";
import { WebGpuExecutor } from "../executor/webgpu.js";
import { BundleText } from "./text.js";

/** @typedef {import("../executor/types.js").Plan} Plan */
/** @typedef {import("../executor/types.js").PlanTarget} PlanTarget */
/** @typedef {import("../executor/types.js").Executor} Executor */
/** @typedef {{backend: string, adapter: GPUAdapter | null, target: PlanTarget, reason: string}} Choice */
/** @typedef {(progress: Record<string, any>) => void} OnProgress */
/** @typedef {{path: string, buffer: number, offset: number, bytes: number}} Shard */

const CONNECTIONS = 3;
const POLICY = "policy.json"; // read by specdec_runtime/schedule/policy.py

/** @param {Plan} plan @param {string} name @returns {PlanTarget | undefined} */
const targetOf = (plan, name) => plan.targets.find((target) => target.name === name);

/**
 * The backend to use. "auto": WebGPU where a real GPU meets the plan's limits, else WASM, with the reason told.
 * @param {Plan} plan @param {string} wanted
 * @returns {Promise<Choice>}
 */
export async function chooseBackend(plan, wanted) {
  if (!["auto", "wasm", "webgpu"].includes(wanted)) {
    throw new RequestError(`unknown backend "${wanted}"`, "backend", "Choose auto, wasm or webgpu");
  }
  const gpu = targetOf(plan, "gpu");
  const cpu = targetOf(plan, "cpu");
  let reason = wanted === "wasm" ? "" : "the bundle has no WebGPU kernels";
  if (gpu && wanted !== "wasm") {
    const found = await findAdapter(gpu, wanted === "webgpu").catch((error) => {
      if (error instanceof DeviceFault) return { adapter: null, reason: error.message };
      throw error;
    });
    if (found.adapter) return { backend: "webgpu", adapter: found.adapter, target: gpu, reason: "" };
    reason = found.reason;
  }
  if (wanted === "webgpu") throw new DeviceFault(`WebGPU cannot be used: ${reason}`, "backend", "Choose the WASM backend");
  if (!cpu) throw new ArtifactError("the bundle has no WASM kernels", "plan.json", "Build it with a cpu target");
  return { backend: "wasm", adapter: null, target: cpu, reason };
}

/** @param {Bundle} bundle @param {PlanTarget} target @returns {Shard[]} where each weight file goes */
function weightShards(bundle, target) {
  /** @type {Shard[]} */
  const shards = [];
  target.buffers.forEach((buffer, index) => {
    let offset = 0;
    for (const path of buffer.files) {
      const { bytes } = bundle.file(path);
      shards.push({ path, buffer: index, offset, bytes });
      offset += bytes;
    }
    if (buffer.files.length && offset !== buffer.bytes) {
      const message = `the files of buffer ${buffer.name} hold ${offset} bytes, the plan says ${buffer.bytes}`;
      throw new ArtifactError(message, "plan.json", "Build the bundle again");
    }
  });
  return shards;
}

/** @param {Bundle} bundle @param {Executor} executor @param {Shard[]} shards @param {(bytes: number) => void} onBytes */
async function downloadWeights(bundle, executor, shards, onBytes) {
  const waiting = [...shards];
  let failed = false;
  const lane = async () => {
    for (let shard = waiting.shift(); shard && !failed; shard = waiting.shift()) {
      const space = executor.weightSpace(shard.buffer, shard.offset, shard.bytes);
      await bundle.fetchInto(shard.path, space, onBytes);
      executor.weightsArrived(shard.buffer, shard.offset, space);
    }
  };
  const lanes = Array.from({ length: CONNECTIONS }, () => lane().catch((error) => {
    failed = true; // the other lanes stop after their file
    throw error;
  }));
  await Promise.all(lanes);
}

/** @param {Choice} choice @param {Uint8Array<ArrayBuffer>} module @param {LoadOptions} options @returns {Promise<Executor>} */
async function makeExecutor({ adapter, target }, module, { timestamps, threads, dot }) {
  if (adapter) return WebGpuExecutor.create(adapter, target, module, { timestamps: timestamps === true, dot });
  return WasmExecutor.create(target, module, { threads });
}

/** Progress of one load: bytes of all files that this backend needs, and kernels made ready. */
class Meter {
  /** @param {OnProgress} onProgress */
  constructor(onProgress) {
    this.onProgress = onProgress;
    this.bytes = 0;
    this.total = 0;
    this.kernels = [0, 0];
    this.told = 0;
  }

  /** @param {number} bytes */
  add(bytes) {
    this.bytes += bytes;
    if (performance.now() - this.told > 50 || this.bytes === this.total) this.tell();
  }

  /** @param {number} done @param {number} total */
  compiled(done, total) {
    this.kernels = [done, total];
    this.tell();
  }

  tell() {
    this.told = performance.now();
    const [kernels_done, kernels_total] = this.kernels;
    this.onProgress({ stage: "load", bytes: this.bytes, total_bytes: this.total, kernels_done, kernels_total });
  }
}

/** @typedef {{backend?: string, timestamps?: boolean, threads?: number, selftest?: boolean | "full", costs?: boolean, dot?: "packed" | "f32"}} LoadOptions */
/** @typedef {import("../executor/selftest.js").Programs} Programs */
/** @typedef {{text: BundleText, executor: Executor, programs: Programs, policyText: string, report: Record<string, any>}} Loaded */

/**
 * The self-test of this device; its verdict goes into `info`. selftest: false is for benches, "full" for tests on software.
 * @param {Executor} executor @param {Plan} plan @param {LoadOptions["selftest"]} wanted @param {OnProgress} onProgress
 * @returns {Promise<Programs>}
 */
async function selfTest(executor, plan, wanted, onProgress) {
  const test = async () => {
    if (!(executor instanceof WebGpuExecutor)) return untested("by specification");
    if (wanted === false) return untested("not run");
    const model = plan.models[0];
    const reduced = executor.watched.adapter.software && wanted !== "full";
    const probe = await RowProbe.create(executor, model);
    try {
      return await testRows(probe, model, reduced, (done, total) => onProgress({ stage: "selftest", done, total }));
    } finally {
      probe.close();
    }
  };
  const { report, programs } = await test();
  executor.info.self_test = report;
  return programs;
}

/**
 * Everything but Python, on one backend.
 * @param {Bundle} bundle @param {Plan} plan @param {Choice} choice @param {LoadOptions} options
 * @param {OnProgress} onProgress
 * @returns {Promise<Loaded>}
 */
async function loadOn(bundle, plan, choice, options, onProgress) {
  const { target, reason } = choice;
  const shards = weightShards(bundle, target);
  const memory = memoryPlan(target);
  const { name, license, compiler, draft_provenance: about } = bundle.manifest;
  onProgress({ stage: "plan", name, backend: choice.backend, reason, memory });
  const hasTemplate = plan.ids.chat_template !== null;
  const hasPolicy = bundle.files.has(POLICY);
  const small = ["tokenizer.json", target.module, ...(hasPolicy ? [POLICY] : []), ...(hasTemplate ? ["chat_template.jinja"] : [])];
  const meter = new Meter(onProgress);
  meter.total = [...small, ...shards.map((shard) => shard.path)].reduce((sum, path) => sum + bundle.file(path).bytes, 0);
  const count = meter.add.bind(meter);
  const module = await bundle.bytes(target.module, count);
  const executor = await makeExecutor(choice, module, options);
  const loadText = async () => {
    const tokenizer = await bundle.text("tokenizer.json", count);
    const template = hasTemplate ? await bundle.text("chat_template.jinja", count) : null;
    return BundleText.load(tokenizer, template, plan.text);
  };
  const loadPolicy = async () => (hasPolicy ? bundle.text(POLICY, count) : "");
  try {
    const compiled = executor.ready(meter.compiled.bind(meter));
    const [text, policyText] = await Promise.all([loadText(), loadPolicy(), compiled, downloadWeights(bundle, executor, shards, count)]);
    const programs = await selfTest(executor, plan, options.selftest, onProgress);
    const roles = plan.models.map(({ role }) => role);
    const model = { name, license, compiler, draft_provenance: about.status, has_template: hasTemplate, roles };
    const report = { device: executor.info, reason, memory, model, context: plan.models[0].max_context };
    return { text, executor, programs, policyText, report };
  } catch (error) {
    executor.close();
    throw error;
  }
}

/**
 * A bundle, ready but for Python. With "auto", a GPU that fails while loading leaves the CPU, and the reason is told.
 * @param {string} url @param {LoadOptions} options @param {OnProgress} onProgress
 * @returns {Promise<Loaded & {planText: string}>}
 */
export async function loadBundle(url, options, onProgress) {
  const bundle = await Bundle.open(url);
  const planText = await bundle.text("plan.json");
  const plan = loadPlan(planText);
  const wanted = options.backend ?? "auto";
  const choice = await chooseBackend(plan, wanted);
  try {
    return { planText, ...(await loadOn(bundle, plan, choice, options, onProgress)) };
  } catch (error) {
    const cpu = targetOf(plan, "cpu");
    if (!(error instanceof DeviceFault) || wanted !== "auto" || choice.backend !== "webgpu" || !cpu) throw error;
    const onCpu = { backend: "wasm", adapter: null, target: cpu, reason: error.message };
    return { planText, ...(await loadOn(bundle, plan, onCpu, options, onProgress)) };
  }
}
