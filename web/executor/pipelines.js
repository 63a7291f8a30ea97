// Kernels to pipelines, programs to lists of dispatches: everything WebGPU needs, made once.
//
// Does not know: buffers' contents, submits, when a program is needed. Invariants: pipelines are compiled asynchronously and together; a WGSL
// error names the kernel and the line; a pipeline is made once, a bind group once for each (kernel, tensors) pair.

import { ArtifactError, DeviceFault } from "./faults.js";
import { withDot } from "./dot.js";
import { alignUp, tensorBytes } from "./layout.js";

/** @typedef {import("./types.js").PlanTarget} PlanTarget */
/** @typedef {import("./types.js").PlanKernel} PlanKernel */
/** @typedef {import("./device.js").WatchedDevice} WatchedDevice */
/** @typedef {{layout: GPUBindGroupLayout, pipeline: GPUComputePipeline}} Compiled */
/** @typedef {{pipeline: GPUComputePipeline, group: GPUBindGroup, grid: number[]}} Dispatch */

const COMPILE_MS = 180000;
const SOFTWARE_COMPILE_MS = 600000;

/** @param {PlanKernel} kernel @param {GPUDevice} device @returns {GPUBindGroupLayout} */
function bindGroupLayout(kernel, device) {
  const entries = kernel.bindings.map((arg, binding) => {
    /** @type {GPUBufferBindingType} */
    const type = kernel.args[arg].access === "read" ? "read-only-storage" : "storage";
    return { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } };
  });
  return device.createBindGroupLayout({ label: kernel.name, entries });
}

/** @param {PlanKernel} kernel @param {Uint8Array} module @returns {string} the kernel's own WGSL text */
function sourceText(kernel, module) {
  const [offset, length] = kernel.source;
  if (offset + length > module.byteLength) {
    throw new ArtifactError(`the source of ${kernel.name} lies outside the module`, "kernels.wgsl", "Build the bundle again");
  }
  return new TextDecoder().decode(module.subarray(offset, offset + length));
}

/** @param {PlanKernel} kernel @param {GPUShaderModule} shader @param {unknown} thrown @returns {Promise<never>} */
async function compileFailed(kernel, shader, thrown) {
  const info = await shader.getCompilationInfo();
  const error = info.messages.find((message) => message.type === "error");
  if (error) {
    const where = `${kernel.name}, line ${error.lineNum}`;
    throw new ArtifactError(`the WGSL does not compile: ${error.message}`, where, "Build the bundle again");
  }
  const why = thrown instanceof Error ? thrown.message : String(thrown);
  throw new DeviceFault(`the GPU did not accept the kernel: ${why}`, kernel.name, "Choose the WASM backend");
}

/** The kernels and programs of a target, each made once. */
export class Programs {
  /** @param {WatchedDevice} watched @param {PlanTarget} target @param {Uint8Array} module the bytes of kernels.wgsl @param {GPUBuffer[]} buffers */
  constructor(watched, target, module, buffers) {
    this.watched = watched;
    this.target = target;
    this.module = module;
    this.buffers = buffers;
    /** By their place in the module. @type {Map<string, GPUShaderModule>} */
    this.shaders = new Map();
    /** By kernel index. @type {Map<number, Promise<Compiled>>} */
    this.kernels = new Map();
    /** @type {Map<string, GPUBindGroup>} */
    this.groups = new Map();
  }

  /** @param {PlanKernel} kernel @returns {GPUShaderModule} */
  shaderOf(kernel) {
    const key = kernel.source.join();
    const found = this.shaders.get(key);
    if (found) return found;
    const code = withDot(sourceText(kernel, this.module), this.watched.dot);
    const shader = this.watched.device.createShaderModule({ label: kernel.name, code });
    this.shaders.set(key, shader);
    return shader;
  }

  /** @param {PlanKernel} kernel @returns {Promise<Compiled>} */
  async compile(kernel) {
    const { device } = this.watched;
    device.pushErrorScope("validation"); // what is wrong here shows again, with a reason, in the pipeline's promise
    const module = this.shaderOf(kernel);
    const layout = bindGroupLayout(kernel, device);
    const pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
    device.popErrorScope().catch(() => {});
    const compute = { module, entryPoint: kernel.entry };
    try {
      const pipeline = await device.createComputePipelineAsync({ label: kernel.name, layout: pipelineLayout, compute });
      return { layout, pipeline };
    } catch (error) {
      return compileFailed(kernel, module, error);
    }
  }

  /**
   * Whether the WGSL of every kernel is valid and its dispatches are allowed, without making a pipeline. ArtifactError names what is not.
   * @param {(done: number, total: number) => void} onProgress
   */
  async check(onProgress) {
    const { kernels, programs } = this.target;
    for (const { dispatches } of programs) {
      for (const { kernel, tensors } of dispatches) checkAliasing(this.target, kernels[kernel], tensors);
    }
    for (const [at, kernel] of kernels.entries()) {
      this.watched.device.pushErrorScope("validation");
      const shader = this.shaderOf(kernel);
      const error = await this.watched.answer(this.watched.device.popErrorScope(), COMPILE_MS, "kernel check");
      if (error) await this.watched.answer(compileFailed(kernel, shader, new Error(error.message)), COMPILE_MS, "kernel check");
      onProgress(at + 1, kernels.length);
    }
  }

  /**
   * Compile what these programs need and is not there yet.
   * @param {string[]} names @param {(done: number, total: number) => void} onProgress
   * @returns {Promise<[string, Dispatch[]][]>}
   */
  async make(names, onProgress) {
    const programs = this.target.programs.filter(({ name }) => names.includes(name));
    const needed = [...new Set(programs.flatMap(({ dispatches }) => dispatches.map(({ kernel }) => kernel)))];
    let done = 0;
    const compileOne = async (/** @type {number} */ index) => {
      const compiled = this.kernels.get(index) ?? this.compile(this.target.kernels[index]);
      this.kernels.set(index, compiled);
      compiled.catch(() => this.kernels.delete(index)); // what failed once may be tried again
      const made = await compiled;
      onProgress(++done, needed.length);
      return /** @type {[number, Compiled]} */ ([index, made]);
    };
    const limit = this.watched.adapter.software ? SOFTWARE_COMPILE_MS : COMPILE_MS;
    const kernels = new Map(await this.watched.answer(Promise.all(needed.map(compileOne)), limit, "kernel compilation"));
    return this.watched.checked("bind groups", () => programs.map(({ name, dispatches }) => [name, this.listOf(dispatches, kernels)]));
  }

  /** @param {PlanTarget["programs"][number]["dispatches"]} dispatches @param {Map<number, Compiled>} kernels @returns {Dispatch[]} */
  listOf(dispatches, kernels) {
    return dispatches.map(({ kernel, tensors, grid }) => {
      const { layout, pipeline } = /** @type {Compiled} */ (kernels.get(kernel));
      return { pipeline, group: this.groupOf(kernel, tensors, layout), grid };
    });
  }

  /** @param {number} index @param {number[]} tensors @param {GPUBindGroupLayout} layout @returns {GPUBindGroup} */
  groupOf(index, tensors, layout) {
    const key = `${index}:${tensors.join()}`;
    const found = this.groups.get(key);
    if (found) return found;
    const kernel = this.target.kernels[index];
    checkAliasing(this.target, kernel, tensors);
    const entries = kernel.bindings.map((arg, binding) => {
      const tensor = this.target.tensors[tensors[arg]];
      const size = alignUp(tensorBytes(tensor), 4);
      return { binding, resource: { buffer: this.buffers[tensor.buffer], offset: tensor.offset, size } };
    });
    const group = this.watched.device.createBindGroup({ label: kernel.name, layout, entries });
    this.groups.set(key, group);
    return group;
  }
}

/**
 * WebGPU refuses a dispatch that writes a buffer which another of its bindings reads, even at other bytes.
 * @param {PlanTarget} target @param {PlanKernel} kernel @param {number[]} tensors
 */
function checkAliasing(target, kernel, tensors) {
  const uses = new Map();
  kernel.args.forEach((arg, i) => {
    const buffer = target.tensors[tensors[i]].buffer;
    const mode = arg.access === "read" ? "read" : "write";
    if ((uses.get(buffer) ?? mode) !== mode) {
      const name = target.buffers[buffer].name;
      throw new ArtifactError(`a dispatch of ${kernel.name} reads and writes buffer ${name}`, "plan.json", "Build the bundle again");
    }
    uses.set(buffer, mode);
  });
}
