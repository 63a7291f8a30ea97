// The WebGPU device: an adapter good enough for a plan's target, a device with just the limits it needs, and the
// watch over both (lost, validation errors, no answer).
//
// Does not know: what buffers and kernels are for. Invariants: an adapter that the browser calls a software fallback is taken only
// when WebGPU was asked for by name; nothing here waits without a time limit.

import { dotKind } from "./dot.js";
import { ArtifactError, DeviceFault, withTimeout } from "./faults.js";
import { tensorBytes } from "./layout.js";

/** @typedef {import("./types.js").PlanTarget} PlanTarget */

const ADAPTER_MS = 15000;
const POKE_MS = 50; // how long a wait is helped along by round trips; longer ones gain nothing by it

/** WGSL language features that a plan may ask for beside device features. */
const WGSL_FEATURES = new Set(["packed_4x8_integer_dot_product", "readonly_and_readwrite_storage_textures"]);

/** @param {GPUAdapter} adapter @returns {{vendor: string, architecture: string, text: string, software: boolean}} */
export function describeAdapter(adapter) {
  const info = adapter.info ?? {};
  const old = /** @type {any} */ (adapter);
  const words = [info.vendor, info.architecture, info.device, info.description].filter(Boolean);
  const text = words.join(" ") || "unknown adapter";
  const named = /swiftshader|lavapipe|llvmpipe|software/i.test(text);
  const software = named || info.isFallbackAdapter === true || old.isFallbackAdapter === true;
  return { vendor: info.vendor ?? "", architecture: info.architecture ?? "", text, software };
}

/** @returns {Promise<GPUAdapter | null>} */
async function requestAdapter() {
  if (!navigator.gpu) return null;
  const late = () => new DeviceFault("the browser named no GPU in time", "WebGPU", "Choose the WASM backend");
  return withTimeout(navigator.gpu.requestAdapter({ powerPreference: "high-performance" }), ADAPTER_MS, late);
}

/** @param {PlanTarget} target @param {string} name of a limit @returns {string} what needs so much, where that is one thing */
function whatNeeds(target, name) {
  if (name === "maxBufferSize") return ` for ${largestOf(target.buffers)}`;
  const sized = target.tensors.map((tensor) => ({ name: tensor.name, bytes: tensorBytes(tensor) }));
  return name === "maxStorageBufferBindingSize" ? ` for ${largestOf(sized)}` : "";
}

/** @param {readonly {name: string, bytes: number}[]} things */
const largestOf = (things) => things.reduce((a, b) => (b.bytes > a.bytes ? b : a)).name;

/**
 * Why the adapter cannot run the target, or "" when it can.
 * @param {GPUAdapter} adapter @param {PlanTarget} target
 * @returns {string}
 */
function whatIsMissing(adapter, target) {
  const limits = /** @type {Record<string, number>} */ (/** @type {unknown} */ (adapter.limits));
  for (const [name, need] of Object.entries(target.limits)) {
    const has = limits[name];
    if (has === undefined) return `the limit ${name}`;
    if (name.startsWith("min") ? has > need : has < need) return `${name} ${need}${whatNeeds(target, name)} (it has ${has})`;
  }
  for (const feature of target.features) {
    const found = WGSL_FEATURES.has(feature)
      ? navigator.gpu.wgslLanguageFeatures?.has(feature)
      : adapter.features.has(feature);
    if (!found) return `the feature ${feature}`;
  }
  return "";
}

/**
 * The adapter to use, or the reason why there is none.
 * @param {PlanTarget} target @param {boolean} allowSoftware
 * @returns {Promise<{adapter: GPUAdapter | null, reason: string}>}
 */
export async function findAdapter(target, allowSoftware) {
  if (!navigator.gpu) {
    const why = globalThis.isSecureContext ? "this browser has no WebGPU" : "WebGPU needs https or localhost";
    return { adapter: null, reason: why };
  }
  const adapter = await requestAdapter();
  if (!adapter) return { adapter: null, reason: "the browser offers no GPU" };
  const { software, text } = describeAdapter(adapter);
  if (software && !allowSoftware) return { adapter: null, reason: `the only adapter is software (${text})` };
  const missing = whatIsMissing(adapter, target);
  return missing ? { adapter: null, reason: `the GPU (${text}) lacks ${missing}` } : { adapter, reason: "" };
}

/**
 * A device, and the first fault that befell it.
 * Faults come in three ways (lost, uncaptured error, no answer); whoever waits on the device waits on `lost` too.
 */
export class WatchedDevice {
  /** @param {GPUDevice} device @param {GPUAdapter} adapter @param {boolean} hasTimestamps */
  constructor(device, adapter, hasTimestamps) {
    this.device = device;
    this.adapter = describeAdapter(adapter);
    this.dot = dotKind(this.adapter.vendor, globalThis.navigator?.gpu?.wgslLanguageFeatures);
    this.hasTimestamps = hasTimestamps;
    /** @type {DeviceFault | null} */
    this.fault = null;
    this.closed = false;
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    this.idle = device.createBuffer({ label: "idle", size: 16, usage });
    /** @type {Promise<never>} */
    this.lost = device.lost.then((info) => {
      this.fault ??= new DeviceFault(`the GPU was lost: ${info.message || info.reason}`, "WebGPU", "Load the bundle again");
      throw this.fault;
    });
    this.lost.catch(() => {}); // heard by whoever races against it; nobody may be waiting
    device.addEventListener("uncapturederror", (event) => {
      const { error } = /** @type {GPUUncapturedErrorEvent} */ (event);
      this.fault ??= new DeviceFault(`the GPU reported: ${error.message}`, "WebGPU", "Load the bundle again");
    });
  }

  /**
   * @param {GPUAdapter} adapter @param {PlanTarget} target @param {boolean} wantTimestamps
   * @returns {Promise<WatchedDevice>}
   */
  static async create(adapter, target, wantTimestamps) {
    const features = target.features.filter((feature) => !WGSL_FEATURES.has(feature));
    const hasTimestamps = wantTimestamps && adapter.features.has("timestamp-query");
    if (hasTimestamps) features.push("timestamp-query");
    const late = () => new DeviceFault("the GPU device did not open in time", "WebGPU", "Choose the WASM backend");
    try {
      const descriptor = /** @type {GPUDeviceDescriptor} */ ({ requiredLimits: target.limits, requiredFeatures: features });
      const device = await withTimeout(adapter.requestDevice(descriptor), ADAPTER_MS, late);
      return new WatchedDevice(device, adapter, hasTimestamps);
    } catch (error) {
      if (error instanceof DeviceFault) throw error;
      const why = /** @type {Error} */ (error).message;
      throw new DeviceFault(`the GPU device did not open: ${why}`, "WebGPU", "Choose the WASM backend");
    }
  }

  /**
   * What the promise gives, unless the device is lost first or nothing came within the limit.
   * @template T
   * @param {Promise<T>} promise @param {number} limitMs @param {string} what
   * @returns {Promise<T>}
   */
  async answer(promise, limitMs, what) {
    const late = () => new DeviceFault(`no answer within ${limitMs / 1000} s`, what, "Load again, or choose the WASM backend");
    try {
      return await withTimeout(Promise.race([promise, this.lost]), limitMs, late);
    } catch (error) {
      if (this.fault) throw this.fault;
      if (error instanceof DeviceFault || error instanceof ArtifactError) throw error;
      throw new DeviceFault(`${/** @type {Error} */ (error).message}`, what, "Load the bundle again");
    }
  }

  /**
   * Waits for what the device was asked. Chromium's GPU process looks for finished work every 2.5 ms unless something else
   * arrives: mapping an idle buffer is a round trip of 0.15 ms that makes it look (measured: docs/performance.md). A software
   * adapter needs its CPU for the work itself.
   * @param {Promise<unknown>} asked
   */
  async poked(asked) {
    let waiting = true;
    const answer = asked.finally(() => {
      waiting = false;
    });
    answer.catch(() => {}); // awaited below; it may fail during a round trip
    const until = this.adapter.software ? 0 : performance.now() + POKE_MS;
    while (waiting && performance.now() < until) {
      await this.idle.mapAsync(GPUMapMode.READ);
      this.idle.unmap();
    }
    await answer;
  }

  /**
   * Runs GPU calls whose errors must not pass unseen; throws the first validation or memory error.
   * @template T
   * @param {string} what @param {() => T} work
   * @returns {Promise<T>}
   */
  async checked(what, work) {
    this.device.pushErrorScope("out-of-memory");
    this.device.pushErrorScope("validation");
    const result = work();
    const invalid = this.device.popErrorScope();
    const memory = this.device.popErrorScope();
    const error = (await this.answer(invalid, ADAPTER_MS, what)) ?? (await this.answer(memory, ADAPTER_MS, what));
    if (error) throw new DeviceFault(error.message, what, "Choose the WASM backend, or a smaller model");
    return result;
  }

  close() {
    this.closed = true;
    this.device.destroy();
  }
}
