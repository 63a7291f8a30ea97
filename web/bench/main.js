// Measures one plan on this machine's GPU: whole passes, single kernels, read speed, the cost of a round outside kernels.
//
// Opened with ?plan=URL&wgsl=URL[&options]; weights are random, made on the device, so that any size is measured without a download.
// The answer is window.benchResult, and goes to POST /result where a runner listens. Invariants: times are slopes between
// R and 3R repetitions of the same work in one submit; what is compared is interleaved; the adapter is named.

import { findAdapter } from "../executor/device.js";
import { loadPlan } from "../executor/plan.js";
import { WebGpuExecutor } from "../executor/webgpu.js";
import { fillWeights } from "./fill.js";
import { measureFloor, measureKernels, measurePasses, measureRead, measureRounds, measureStep } from "./measure.js";
import { log, report } from "./outcome.js";

/** @param {URLSearchParams} query @returns {{programs: RegExp, kernels: RegExp}} which kernels to measure */
function kernelChoice(query) {
  const programs = query.get("programs") ?? "^target\\.(verify_[18]|prefill)$";
  return { programs: new RegExp(programs), kernels: new RegExp(query.get("kernels") ?? ".") };
}

/** @param {URLSearchParams} query */
async function run(query) {
  const plan = loadPlan(await (await fetch(query.get("plan") ?? "plan.json")).text());
  const module = new Uint8Array(await (await fetch(query.get("wgsl") ?? "kernels.wgsl")).arrayBuffer());
  const target = plan.targets.find(({ name }) => name === "gpu");
  if (!target) throw new Error("the plan has no gpu target");
  const { adapter, reason } = await findAdapter(target, query.get("software") === "1");
  if (!adapter) throw new Error(reason);
  const began = performance.now();
  const executor = await WebGpuExecutor.create(adapter, target, module, { timestamps: false });
  await fillWeights(executor);
  const filled = performance.now();
  await executor.ready(() => {});
  const readyMs = performance.now() - filled;
  log(`ready in ${readyMs.toFixed(0)} ms`);
  const options = {
    start: Number(query.get("start") ?? 512),
    tries: Number(query.get("tries") ?? 7),
    repeats: Number(query.get("repeats") ?? 4),
  };
  const parts = (query.get("parts") ?? "passes,step,rounds,kernels").split(",");
  const has = (/** @type {string} */ part) => parts.includes(part);
  const result = {
    name: plan.name,
    adapter: executor.info.adapter,
    browser: navigator.userAgent,
    options,
    fill_ms: filled - began,
    pipelines_ms: readyMs,
    resident_bytes: target.buffers.reduce((sum, { bytes }) => sum + bytes, 0),
    floor_us: await measureFloor(executor),
    read: await measureRead(executor),
    passes: has("passes") ? await measurePasses(executor, plan, options) : [],
    step: has("step") ? await measureStep(executor, plan, options) : [],
    rounds: has("rounds") ? await measureRounds(executor, plan, options) : [],
    kernels: has("kernels") ? await measureKernels(executor, plan, options, kernelChoice(query)) : [],
  };
  executor.close();
  return result;
}

await report(run);
