// The WASM executor: one linear memory, every program a prebuilt list of [function, pointers].
//
// Does not know: what the kernels compute, who asks. Invariants: every buffer's place is fixed before the module
// runs; memory that the module did not get from us (its data and stack, below __heap_base) is never ours; submit is
// synchronous and allocates no linear memory; KV and state begin as zeros (a new memory is zero-filled).

import { ArtifactError, ContractError, DeviceFault } from "./faults.js";
import { alignUp, hostRange, hostTensors, megabytes, toNumbers } from "./layout.js";
import { importedMemory, requireWasmFeatures } from "./wasm_binary.js";

/** @typedef {import("./types.js").PlanTarget} PlanTarget */
/** @typedef {[Function, number[]]} Step a kernel and the addresses of its arguments */

const PAGE = 65536;
const MAX_PAGES = 65536; // 4 GiB, the reach of an i32 pointer
const ALIGN = 256;

/** @param {PlanTarget} target @returns {number} the bytes of all buffers, each on its own alignment */
function bufferBytes(target) {
  return target.buffers.reduce((sum, buffer) => sum + alignUp(buffer.bytes, ALIGN), 0);
}

/**
 * A memory large enough for the module and all buffers, or a refusal with numbers.
 * @param {PlanTarget} target @param {Uint8Array} moduleBytes
 * @returns {WebAssembly.Memory}
 */
function makeMemory(target, moduleBytes) {
  const limits = importedMemory(moduleBytes);
  const pages = limits.minPages + Math.ceil((bufferBytes(target) + ALIGN) / PAGE);
  const most = Math.min(MAX_PAGES, limits.maxPages ?? MAX_PAGES);
  const need = `${megabytes(pages * PAGE)} of memory are needed`;
  if (limits.shared) throw new ArtifactError("the module wants shared memory", target.module, "Build the bundle again");
  if (pages > most) {
    throw new DeviceFault(`${need}, at most ${megabytes(most * PAGE)} can be had`, "WASM memory", "Use a smaller model");
  }
  try {
    return new WebAssembly.Memory(
      limits.maxPages === null ? { initial: pages } : { initial: pages, maximum: limits.maxPages },
    );
  } catch (error) {
    const action = "Close other pages, or use a smaller model";
    throw new DeviceFault(`${need}, the browser refused: ${/** @type {Error} */ (error).message}`, "WASM memory", action);
  }
}

/** @param {WebAssembly.Module} module @param {string} where */
function checkImports(module, where) {
  const extra = WebAssembly.Module.imports(module).filter((item) => item.module !== "env" || item.name !== "memory");
  if (extra.length) {
    const names = extra.map((item) => `${item.module}.${item.name}`).join(", ");
    throw new ArtifactError(`the module imports ${names}; only env.memory is given`, where, "Build the bundle again");
  }
}

/** @param {Uint8Array<ArrayBuffer>} bytes @param {string} where @returns {Promise<WebAssembly.Module>} */
async function compile(bytes, where) {
  try {
    return await WebAssembly.compile(bytes);
  } catch (error) {
    throw new ArtifactError(`the module does not compile: ${/** @type {Error} */ (error).message}`, where, "Build the bundle again");
  }
}

/** @param {WebAssembly.Exports} exports @param {string} where @returns {number} where free memory begins */
function heapBase(exports, where) {
  const base = exports.__heap_base;
  if (!(base instanceof WebAssembly.Global)) {
    throw new ArtifactError("the module does not export __heap_base", where, "Build the bundle again");
  }
  return base.value >>> 0;
}

/** @param {PlanTarget} target @param {number} base @returns {number[]} the address of each buffer */
function placeBuffers(target, base) {
  let next = alignUp(base, ALIGN);
  return target.buffers.map((buffer) => {
    const address = next;
    next += alignUp(buffer.bytes, ALIGN);
    return address;
  });
}

/**
 * Each program as its list of steps.
 * @param {PlanTarget} target @param {WebAssembly.Exports} exports @param {number[]} addresses
 * @returns {Map<string, Step[]>}
 */
function buildPrograms(target, exports, addresses) {
  const functions = target.kernels.map(({ name, entry }) => {
    const found = exports[entry];
    if (typeof found === "function") return found;
    throw new ArtifactError(`the module has no function "${entry}" for kernel ${name}`, target.module, "Build the bundle again");
  });
  const pointers = target.tensors.map((tensor) => addresses[tensor.buffer] + tensor.offset);
  return new Map(
    target.programs.map((program) => [
      program.name,
      program.dispatches.map(({ kernel, tensors }) => [functions[kernel], tensors.map((index) => pointers[index])]),
    ]),
  );
}

export class WasmExecutor {
  /** @param {PlanTarget} target @param {WebAssembly.Memory} memory @param {WebAssembly.Exports} exports */
  constructor(target, memory, exports) {
    const addresses = placeBuffers(target, heapBase(exports, target.module));
    /** @type {import("./types.js").Executor["info"]} */
    this.info = { backend: "wasm", adapter: `WebAssembly ${target.features.join(" ")}`.trim() };
    this.plainSteps = 1; // a submit costs nothing here
    this.memoryBytes = memory.buffer.byteLength;
    this.memory = /** @type {ArrayBuffer} */ (memory.buffer);
    this.addresses = addresses;
    this.tensors = hostTensors(target);
    this.programs = buildPrograms(target, exports, addresses);
  }

  /** @param {PlanTarget} target @param {Uint8Array<ArrayBuffer>} moduleBytes @returns {Promise<WasmExecutor>} */
  static async create(target, moduleBytes) {
    requireWasmFeatures(target.features);
    const module = await compile(moduleBytes, target.module);
    checkImports(module, target.module);
    const memory = makeMemory(target, moduleBytes);
    const instance = await WebAssembly.instantiate(module, { env: { memory } });
    return new WasmExecutor(target, memory, instance.exports);
  }

  /** The bytes of a weight buffer themselves: a download lands in place. */
  weightSpace(/** @type {number} */ buffer, /** @type {number} */ offset, /** @type {number} */ bytes) {
    return new Uint8Array(this.memory, this.addresses[buffer] + offset, bytes);
  }

  weightsArrived() {}

  async ready(/** @type {(done: number, total: number) => void} */ onProgress) {
    onProgress(1, 1);
  }

  /** @param {import("./layout.js").HostTensor} tensor @param {number} offset @param {number} count */
  view(tensor, offset, count) {
    const address = this.addresses[tensor.buffer] + tensor.offset + 4 * offset;
    return new (tensor.isFloat ? Float32Array : Int32Array)(this.memory, address, count);
  }

  /** @param {string} call runs one program @returns {number} its milliseconds */
  run(call) {
    const steps = this.programs.get(call);
    if (!steps) throw new ContractError(`there is no program "${call}"`, "submit");
    const start = performance.now();
    try {
      for (const [kernel, pointers] of steps) kernel(...pointers);
    } catch (error) {
      throw new DeviceFault(`a kernel failed: ${/** @type {Error} */ (error).message}`, call, "Load the bundle again");
    }
    return performance.now() - start;
  }

  /** @param {import("./types.js").Submit} batch @returns {import("./types.js").Readback} */
  submit(batch) {
    for (const [name, offset, values] of batch.writes) {
      this.view(hostRange(this.tensors, name, offset, values.length), offset, values.length).set(values);
    }
    const read = (/** @type {import("./types.js").Read} */ [name, offset, count]) =>
      toNumbers(this.view(hostRange(this.tensors, name, offset, count), offset, count));
    /** @type {number[][]} */
    const values = [];
    const ms = batch.calls.map((call) => {
      const spent = this.run(call);
      values.push(...(batch.each ?? []).map(read));
      return spent;
    });
    values.push(...batch.reads.map(read));
    return { values, ms };
  }

  close() {
    this.programs.clear();
  }
}
