// A helper thread of the WASM executor: a nested worker with its own instance of the module over the shared memory.
//
// Does not know: what the kernels compute, who asks. Hears one message, says "ready", and never hears another: from
// then on it works and sleeps inside `follow` until it is terminated.

import { bindPrograms } from "./wasm_programs.js";
import { fail, follow } from "./wasm_team.js";

/** @typedef {import("./wasm_programs.js").Programs} Programs */
/**
 * @typedef {{module: WebAssembly.Module, memory: WebAssembly.Memory, stackTop: number, control: Int32Array,
 *   programs: Programs}} Start
 */

self.onmessage = (/** @type {MessageEvent<Start>} */ { data: { module, memory, stackTop, control, programs } }) => {
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  /** @type {WebAssembly.Global} */ (exports.__stack_pointer).value = stackTop;
  const bound = bindPrograms(programs, exports);
  self.postMessage("ready");
  try {
    follow(control, bound);
  } catch (error) {
    fail(control);
    throw error;
  }
};
