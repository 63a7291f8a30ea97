// The WASM executor: one linear memory, every program a prebuilt list of tickets (wasm_programs.js), run by this thread
// alone or with helper threads over the same memory, shared (wasm_team.js).
//
// Does not know: what the kernels compute, who asks. Invariants: every buffer's place is fixed before the module
// runs; memory that the module did not get from us (its stack, below __heap_base) is never ours; the module has no data
// section, so instances share buffers only; each thread has a stack; submit is synchronous and
// allocates no linear memory; KV and state begin as zeros (a new memory is zero-filled); results are the same bits
// whatever the number of threads.

import { ArtifactError, ContractError, DeviceFault } from "./faults.js";
import { alignUp, hostRange, hostTensors, megabytes, toNumbers } from "./layout.js";
import { importedMemory, requireWasmFeatures, withSharedMemory } from "./wasm_binary.js";
import { bindPrograms, listPrograms } from "./wasm_programs.js";
import { lead, makeControl } from "./wasm_team.js";
import { chooseThreads, startHelpers } from "./wasm_threads.js";

/** @typedef {import("./types.js").PlanTarget} PlanTarget */
/** @typedef {import("./wasm_binary.js").MemoryLimits} MemoryLimits */
/** @typedef {import("./wasm_programs.js").Programs} Programs */
/** @typedef {import("./wasm_team.js").Ticket} Ticket */
/** @typedef {import("./wasm_threads.js").Threads} Threads */
/** @typedef {{control: Int32Array, workers: Worker[]}} Team the helpers, and what they watch */

const PAGE = 65536;
const MAX_PAGES = 65536; // 4 GiB, the reach of an i32 pointer
const ALIGN = 256;

/** @param {PlanTarget} target @returns {number} the bytes of all buffers, each on its own alignment */
function bufferBytes(target) {
  return target.buffers.reduce((sum, buffer) => sum + alignUp(buffer.bytes, ALIGN), 0);
}

/**
 * A memory large enough for the module, all buffers and the helpers' stacks, or a refusal with numbers.
 * @param {PlanTarget} target @param {MemoryLimits} limits @param {number} helpers
 * @returns {WebAssembly.Memory}
 */
function makeMemory(target, limits, helpers) {
  const pages = limits.minPages * (1 + helpers) + Math.ceil((bufferBytes(target) + ALIGN) / PAGE);
  const most = Math.min(MAX_PAGES, limits.maxPages ?? MAX_PAGES);
  const need = `${megabytes(pages * PAGE)} of memory are needed`;
  if (pages > most) {
    throw new DeviceFault(`${need}, at most ${megabytes(most * PAGE)} can be had`, "WASM memory", "Use a smaller model");
  }
  try {
    // the maximum is what is needed: a browser reserves address space for it
    const maximum = limits.maxPages === null ? {} : { maximum: pages };
    return new WebAssembly.Memory({ initial: pages, ...maximum, ...(helpers && { shared: true }) });
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
 * How many threads this module can have of those wanted.
 * @param {Uint8Array<ArrayBuffer>} bytes @param {WebAssembly.Module} module @param {number | undefined} wanted
 * @returns {Threads & {sharedBytes: Uint8Array<ArrayBuffer> | null}} sharedBytes: the module for more than one thread
 */
function moduleThreads(bytes, module, wanted) {
  const chosen = chooseThreads(wanted);
  if (chosen.threads === 1) return { ...chosen, sharedBytes: null };
  const hasStack = WebAssembly.Module.exports(module).some(({ name }) => name === "__stack_pointer");
  const sharedBytes = hasStack ? withSharedMemory(bytes) : null;
  if (sharedBytes) return { ...chosen, sharedBytes };
  return { threads: 1, reason: "the bundle's module was not built for threads", sharedBytes };
}

/**
 * The messages that start the helpers: each has its own stack, at the end of the memory and as large as the first's.
 * @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory @param {MemoryLimits} limits
 * @param {number} helpers @param {Programs} programs
 */
function helperStarts(module, memory, limits, helpers, programs) {
  const control = makeControl();
  const end = memory.buffer.byteLength;
  const starts = Array.from({ length: helpers }, (_, i) => {
    return { module, memory, stackTop: end - i * limits.minPages * PAGE, control, programs };
  });
  return { control, starts };
}

export class WasmExecutor {
  /**
   * @param {PlanTarget} target @param {WebAssembly.Memory} memory @param {number[]} addresses
   * @param {Ticket[][]} programs @param {Team | null} team @param {Threads} threads
   */
  constructor(target, memory, addresses, programs, team, { threads, reason }) {
    const adapter = `WebAssembly ${target.features.join(" ")}`.trim();
    /** @type {import("./types.js").Executor["info"]} */
    this.info = { backend: "wasm", adapter, threads, threads_reason: reason };
    this.plainSteps = 1; // a submit costs nothing here
    this.rounds = 1;
    /** @type {import("./types.js").Executor["timing"]} */
    this.timing = "calls";
    this.isAsync = false;
    this.memoryBytes = memory.buffer.byteLength;
    this.memory = /** @type {ArrayBuffer} */ (memory.buffer);
    this.addresses = addresses;
    this.tensors = hostTensors(target);
    this.programs = programs;
    this.indices = new Map(target.programs.map(({ name }, index) => [name, index]));
    this.team = team;
    /** What ended the executor. @type {DeviceFault | null} */
    this.fault = null;
  }

  /**
   * @param {PlanTarget} target @param {Uint8Array<ArrayBuffer>} moduleBytes
   * @param {{threads?: number}} [options] threads: as many as wanted; left out, the machine's, up to 4
   * @returns {Promise<WasmExecutor>}
   */
  static async create(target, moduleBytes, options = {}) {
    requireWasmFeatures(target.features);
    const plain = await compile(moduleBytes, target.module);
    checkImports(plain, target.module);
    const limits = importedMemory(moduleBytes);
    if (limits.shared) throw new ArtifactError("the module wants shared memory", target.module, "Build the bundle again");
    const { sharedBytes, ...wanted } = moduleThreads(moduleBytes, plain, options.threads);
    const helpers = wanted.threads - 1;
    const module = sharedBytes ? await compile(sharedBytes, target.module) : plain;
    const memory = makeMemory(target, limits, helpers);
    const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
    const addresses = placeBuffers(target, heapBase(exports, target.module));
    const listed = listPrograms(target, addresses, wanted.threads);
    const bound = bindPrograms(listed, exports);
    if (helpers === 0) return new WasmExecutor(target, memory, addresses, bound, null, wanted);
    const { control, starts } = helperStarts(module, memory, limits, helpers, listed);
    const { workers, reason } = await startHelpers(starts);
    if (!reason) return new WasmExecutor(target, memory, addresses, bound, { control, workers }, wanted);
    const alone = bindPrograms(listPrograms(target, addresses, 1), exports);
    return new WasmExecutor(target, memory, addresses, alone, null, { threads: 1, reason });
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
    const index = this.indices.get(call);
    if (index === undefined) throw new ContractError(`there is no program "${call}"`, "submit");
    const start = performance.now();
    try {
      if (this.team) lead(this.team.control, index, this.programs[index]);
      else for (const { kernel, args } of this.programs[index]) kernel(...args);
    } catch (error) {
      const { message } = /** @type {Error} */ (error);
      const fault = new DeviceFault(`a kernel failed: ${message}`, call, "Load the bundle again");
      this.fault = error instanceof DeviceFault ? error : fault;
      this.close(); // helpers may still be inside the program
      throw this.fault;
    }
    return performance.now() - start;
  }

  /** @param {import("./types.js").Submit} batch @returns {import("./types.js").Readback} */
  submit(batch) {
    if (this.fault) throw this.fault;
    for (const [name, offset, values] of batch.writes) {
      this.view(hostRange(this.tensors, name, offset, values.length), offset, values.length).set(values);
    }
    const ms = batch.calls.map((call) => this.run(call));
    const values = batch.reads.map(([name, offset, count]) =>
      toNumbers(this.view(hostRange(this.tensors, name, offset, count), offset, count)),
    );
    return { values, ms };
  }

  async settle() {}

  close() {
    for (const worker of this.team?.workers ?? []) worker.terminate();
    this.team = null;
    this.programs = [];
    this.fault ??= new DeviceFault("the executor is closed", "WASM", "Load the bundle again");
  }
}
