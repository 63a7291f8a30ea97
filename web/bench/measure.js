// The measurements: every number is a slope between R and 3R repetitions in one submit, the least of several tries.
//
// Waiting is by mapping a copied word: onSubmittedWorkDone answers in steps of milliseconds.

/** @typedef {import("../executor/webgpu.js").WebGpuExecutor} WebGpuExecutor */
/** @typedef {import("../executor/types.js").Plan} Plan */
/** @typedef {{start: number, tries: number, repeats: number}} Options */

/** @param {WebGpuExecutor} executor @param {(pass: GPUComputePassEncoder) => void} encode @returns {Promise<number>} wall ms */
async function timeOnce(executor, encode) {
  const { device, buffers } = executor;
  const staging = executor.stagingOf(256);
  const began = performance.now();
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  encode(pass);
  pass.end();
  encoder.copyBufferToBuffer(buffers[executor.tensors.get("tokens")?.buffer ?? 0], 0, staging, 0, 16);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ, 0, 16);
  staging.unmap();
  return performance.now() - began;
}

const LEAST_MS = 1e-6; // noise may make a slope 0 or less, and speeds are divided by it

/**
 * Least ms of one repetition, by slope. No speed is read off a software adapter: one repetition shows that the page works.
 * @param {WebGpuExecutor} executor @param {(pass: GPUComputePassEncoder) => void} encode @param {number} repeats @param {number} tries
 */
async function slope(executor, encode, repeats, tries) {
  if (executor.watched.adapter.software) repeats = tries = 1;
  const times = (/** @type {number} */ count) => (/** @type {GPUComputePassEncoder} */ pass) => {
    for (let i = 0; i < count; i++) encode(pass);
  };
  await timeOnce(executor, times(repeats));
  let few = Infinity;
  let many = Infinity;
  for (let i = 0; i < tries; i++) {
    few = Math.min(few, await timeOnce(executor, times(repeats)));
    many = Math.min(many, await timeOnce(executor, times(3 * repeats)));
  }
  return Math.max((many - few) / (2 * repeats), LEAST_MS);
}

/** Microseconds of a dispatch that does nothing but depend on the one before: what every kernel costs at least. @param {WebGpuExecutor} executor */
export async function measureFloor(executor) {
  const { device } = executor;
  const code = await (await fetch(new URL("../shaders/bench_floor.wgsl", import.meta.url))).text();
  const module = device.createShaderModule({ code });
  const word = device.createBuffer({ size: 16, usage: GPUBufferUsage.STORAGE });
  const made = ["one", "two"].map(async (entryPoint) => {
    const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint } });
    const entries = [{ binding: 0, resource: { buffer: word } }];
    return { pipeline, group: device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }) };
  });
  const alternating = await Promise.all(made);
  const encode = (/** @type {GPUComputePassEncoder} */ pass) => {
    for (const { pipeline, group } of alternating) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(1);
    }
  };
  return (1000 / 2) * (await slope(executor, encode, 200, 5));
}

/** Read speed over all weight buffers, GB/s: what a weight-bound kernel is compared with. @param {WebGpuExecutor} executor */
export async function measureRead(executor) {
  const { device, target, buffers } = executor;
  const code = await (await fetch(new URL("../shaders/bench_read.wgsl", import.meta.url))).text();
  const module = device.createShaderModule({ code });
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "stream" } });
  const out = device.createBuffer({ size: 16, usage: GPUBufferUsage.STORAGE });
  let bytes = 0;
  const groups = target.buffers.flatMap((buffer, i) => {
    if (buffer.lifetime !== "weight") return [];
    bytes += buffer.bytes;
    const entries = [buffers[i], out].map((each, binding) => ({ binding, resource: { buffer: each } }));
    return [device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries })];
  });
  const encode = (/** @type {GPUComputePassEncoder} */ pass) => {
    pass.setPipeline(pipeline);
    for (const group of groups) {
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(2048);
    }
  };
  const repeats = Math.min(200, Math.max(4, Math.ceil(8e9 / bytes))); // long enough for a slope
  const ms = await slope(executor, encode, repeats, 5);
  return { bytes, ms, gb_per_s: bytes / ms / 1e6 };
}

/** @param {WebGpuExecutor} executor @param {Plan} plan @param {number} start @param {number} rows */
function prepare(executor, plan, start, rows) {
  /** @type {[string, number, number[]][]} */
  const writes = [];
  for (const model of plan.models) {
    writes.push([`${model.role}.args`, 0, [start, rows, 0, 0]]);
    writes.push([`${model.role}.page_table`, 0, Array.from({ length: model.num_pages }, (_, i) => i)]);
  }
  writes.push(["tokens", 0, Array.from({ length: 64 }, (_, i) => 17 * i + 3)]);
  executor.write({ kind: "verify", writes, calls: [], reads: [] });
}

/** Bytes of the weights that dispatches read. @param {WebGpuExecutor} executor @param {{tensors: number[]}[]} dispatches */
function weightBytes(executor, dispatches) {
  const { target } = executor;
  const used = new Set(dispatches.flatMap(({ tensors }) => tensors));
  let bytes = 0;
  for (const index of used) {
    const tensor = target.tensors[index];
    if (target.buffers[tensor.buffer].lifetime === "weight") bytes += executor.tensors.get(tensor.name)?.bytes ?? 0;
  }
  return bytes;
}

/** ms of every whole program, interleaved over the tries. @param {WebGpuExecutor} executor @param {Plan} plan @param {Options} options */
export async function measurePasses(executor, plan, options) {
  const rows = [];
  for (const program of executor.target.programs) {
    if (program.name.includes("score")) continue;
    prepare(executor, plan, options.start, program.width);
    await executor.make([program.name]);
    const ms = await slope(executor, (pass) => executor.encode(pass, program.name), options.repeats, options.tries);
    rows.push({
      program: program.name,
      width: program.width,
      dispatches: program.dispatches.length,
      ms,
      weight_bytes: weightBytes(executor, program.dispatches),
    });
  }
  return rows;
}

/** Wall time of real submits with their readback: a plain step, and a round of k drafts and a verify. */
export async function measureRounds(
  /** @type {WebGpuExecutor} */ executor,
  /** @type {Plan} */ plan,
  /** @type {Options} */ options,
) {
  const { start, tries } = options;
  const hasDraft = plan.models.length > 1;
  const kinds = [{ name: "plain", rows: 1, k: 0 }];
  for (const k of [1, 3, 7]) {
    kinds.push({ name: `verify ${k + 1} rows`, rows: k + 1, k: 0 });
    if (hasDraft) kinds.push({ name: `draft ${k} and verify`, rows: k + 1, k });
  }
  const best = kinds.map(() => Infinity);
  for (let i = 0; i < 4 * tries; i++) {
    for (const [at, { rows, k }] of kinds.entries()) {
      /** @type {[string, number, number[]][]} */
      const writes = [["target.args", 0, [start, rows, 0, 0]]];
      if (k) writes.push(["draft.args", 0, [start, 1, 1, 0]]);
      const calls = [...Array.from({ length: k }, () => "draft.step_1"), `target.verify_${rows}`];
      const began = performance.now();
      await executor.submit({ kind: "round", writes, calls, reads: [["target.out", 0, 2 * rows], ["tokens", start, rows]] });
      best[at] = Math.min(best[at], performance.now() - began);
    }
  }
  return kinds.map((kind, at) => ({ ...kind, ms: best[at] }));
}

/**
 * Microseconds of each kernel: all its dispatches in a program back to back (other layers, other weights), by slope.
 * @param {WebGpuExecutor} executor @param {Plan} plan @param {Options} options @param {{programs: RegExp, kernels: RegExp}} choice
 */
export async function measureKernels(executor, plan, options, choice) {
  const rows = [];
  for (const program of executor.target.programs) {
    if (!choice.programs.test(program.name)) continue;
    prepare(executor, plan, options.start, program.width);
    await executor.make([program.name]);
    const dispatches = executor.programs.get(program.name) ?? [];
    for (const kernel of new Set(program.dispatches.map((each) => each.kernel))) {
      if (!choice.kernels.test(executor.target.kernels[kernel].name)) continue;
      const mine = dispatches.filter((_, i) => program.dispatches[i].kernel === kernel);
      const encode = (/** @type {GPUComputePassEncoder} */ pass) => {
        pass.setPipeline(mine[0].pipeline);
        for (const { group, grid } of mine) {
          pass.setBindGroup(0, group);
          pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
        }
      };
      const repeats = Math.max(1, Math.round((100 * options.repeats) / mine.length));
      const ms = await slope(executor, encode, Math.min(repeats, 200), 3);
      const { name, params } = executor.target.kernels[kernel];
      const bytes = weightBytes(executor, program.dispatches.filter((each) => each.kernel === kernel)) / mine.length;
      rows.push({ program: program.name, width: program.width, kernel: name, params, count: mine.length, us: (1000 * ms) / mine.length, bytes });
    }
  }
  return rows;
}

/**
 * Ways to wait for a mapped buffer: plainly, or with short round trips to the GPU process meanwhile, each of which makes it look.
 * @type {Record<string, (device: GPUDevice, idle: GPUBuffer) => Promise<unknown>>}
 */
const POKES = {
  map: async (_, idle) => {
    await idle.mapAsync(GPUMapMode.READ, 0, 16);
    idle.unmap();
  },
  scope: async (device) => {
    device.pushErrorScope("validation");
    await device.popErrorScope();
  },
  shader: async (device) => {
    await device.createShaderModule({ code: "" }).getCompilationInfo();
  },
};

/**
 * Wall time of `passes` plain steps in one submit, cut to the first `count` dispatches, and where it goes.
 * @param {WebGpuExecutor} executor @param {Plan} plan @param {Options} options
 */
export async function measureStep(executor, plan, options) {
  prepare(executor, plan, options.start, 1);
  await executor.make(["target.verify_1"]);
  const { device, buffers } = executor;
  const all = executor.programs.get("target.verify_1") ?? [];
  const staging = executor.stagingOf(256);
  const out = buffers[executor.tensors.get("target.out")?.buffer ?? 0];
  const idle = device.createBuffer({ size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  const rows = [];
  const cases = [0, 1, 50, 100, 200, all.length].map((count) => ({ count, passes: 1, poke: "none" }));
  for (const poke of Object.keys(POKES)) cases.push({ count: all.length, passes: 1, poke });
  for (const passes of [2, 4, 8]) cases.push({ count: all.length, passes, poke: "none" });
  cases.push({ count: all.length, passes: 4, poke: "map" });
  for (const { count, passes, poke } of cases) {
    let best = Infinity;
    const walls = [];
    for (let i = 0; i < 6 * options.tries; i++) {
      const began = performance.now();
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      for (let n = 0; n < passes; n++) {
        for (const { pipeline, group, grid } of all.slice(0, count)) {
          pass.setPipeline(pipeline);
          pass.setBindGroup(0, group);
          pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
        }
      }
      pass.end();
      encoder.copyBufferToBuffer(out, 0, staging, 0, 64);
      device.queue.submit([encoder.finish()]);
      let mapped = false;
      const answer = staging.mapAsync(GPUMapMode.READ, 0, 64).then(() => {
        mapped = true;
      });
      if (poke !== "none") {
        while (!mapped) await POKES[poke](device, idle);
      }
      await answer;
      const wall = performance.now() - began;
      staging.unmap();
      walls.push(wall);
      best = Math.min(best, wall);
    }
    walls.sort((a, b) => a - b);
    rows.push({ count, passes, poke, best_ms: best, median_ms: walls[walls.length >> 1] });
  }
  return rows;
}
