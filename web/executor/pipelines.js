// Kernels to pipelines, programs to lists of dispatches: everything WebGPU needs made once, before the first token.
//
// Does not know: buffers' contents, submits. Invariants: pipelines are compiled asynchronously and together; a WGSL
// error names the kernel and the line; a bind group is made once for each (kernel, tensors) pair.

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

/**
 * @param {WatchedDevice} watched @param {PlanTarget} target @param {Uint8Array} module the bytes of kernels.wgsl
 * @param {(done: number, total: number) => void} onProgress
 * @returns {Promise<Compiled[]>} by kernel index
 */
export async function compileKernels(watched, target, module, onProgress) {
  const { device } = watched;
  /** @type {Map<string, GPUShaderModule>} */
  const shaders = new Map();
  let done = 0;
  const compileOne = async (/** @type {PlanKernel} */ kernel) => {
    const key = kernel.source.join();
    const code = withDot(sourceText(kernel, module), watched.dot);
    device.pushErrorScope("validation"); // what is wrong here shows again, with a reason, in the pipeline's promise
    const shader = shaders.get(key) ?? device.createShaderModule({ label: kernel.name, code });
    shaders.set(key, shader);
    const layout = bindGroupLayout(kernel, device);
    const pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
    device.popErrorScope().catch(() => {});
    const compute = { module: shader, entryPoint: kernel.entry };
    try {
      const pipeline = await device.createComputePipelineAsync({ label: kernel.name, layout: pipelineLayout, compute });
      onProgress(++done, target.kernels.length);
      return { layout, pipeline };
    } catch (error) {
      return compileFailed(kernel, shader, error);
    }
  };
  const all = Promise.all(target.kernels.map(compileOne));
  const limit = watched.adapter.software ? SOFTWARE_COMPILE_MS : COMPILE_MS;
  return watched.answer(all, limit, "kernel compilation");
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

/**
 * @param {GPUDevice} device @param {PlanTarget} target @param {Compiled[]} kernels @param {GPUBuffer[]} buffers
 * @returns {Map<string, Dispatch[]>} by program name
 */
export function buildPrograms(device, target, kernels, buffers) {
  /** @type {Map<string, GPUBindGroup>} */
  const groups = new Map();
  const bindGroup = (/** @type {number} */ index, /** @type {number[]} */ tensors) => {
    const key = `${index}:${tensors.join()}`;
    const found = groups.get(key);
    if (found) return found;
    const kernel = target.kernels[index];
    checkAliasing(target, kernel, tensors);
    const entries = kernel.bindings.map((arg, binding) => {
      const tensor = target.tensors[tensors[arg]];
      const size = alignUp(tensorBytes(tensor), 4);
      return { binding, resource: { buffer: buffers[tensor.buffer], offset: tensor.offset, size } };
    });
    const group = device.createBindGroup({ label: kernel.name, layout: kernels[index].layout, entries });
    groups.set(key, group);
    return group;
  };
  return new Map(
    target.programs.map((program) => [
      program.name,
      program.dispatches.map(({ kernel, tensors, grid }) => {
        return { pipeline: kernels[kernel].pipeline, group: bindGroup(kernel, tensors), grid };
      }),
    ]),
  );
}
