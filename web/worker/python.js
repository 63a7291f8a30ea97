// Pyodide and the runtime wheel: boots once, makes the engine that decides what to submit.
//
// The only crossing is text: plan and request in, effects out. Nothing here is awaited per token: `start`, `send`
// and `cancel` are plain synchronous calls into Python. No tensor ever comes here.

import { ArtifactError, ContractError, errorFromJson, withTimeout, DeviceFault } from "../executor/faults.js";
import { vendored } from "./text.js";

const BOOT_MS = 180000;
const PYODIDE = new URL("../vendor/pyodide/", import.meta.url).href;
const WHEEL = new URL("../vendor/runtime/specdec_runtime.whl", import.meta.url).href;

/**
 * @typedef {{
 *   start: (request: string) => string, send: (readback: string) => string, fail: (error: string) => string,
 *   tokens: (table: string) => string, cancel: () => void, probes: (split: boolean) => string, measured: (times: string) => string, state: Record<string, any>
 * }} Engine state: what Engine.ready said
 */

/** @returns {Promise<ArrayBuffer>} */
async function fetchWheel() {
  const response = await fetch(WHEEL, { cache: "no-cache" });
  if (!response.ok) {
    throw new ArtifactError("the runtime wheel is missing", WHEEL, "Fill web/vendor with python -m specdec_tools.site");
  }
  return response.arrayBuffer();
}

/** @returns {Promise<(planText: string, programs: string, policy: string) => any>} the class `Engine` of specdec_runtime.worker */
async function boot() {
  const [{ loadPyodide }, wheel] = await Promise.all([vendored("pyodide/pyodide.mjs"), fetchWheel()]);
  const pyodide = await loadPyodide({ indexURL: PYODIDE });
  pyodide.unpackArchive(wheel, "wheel");
  return pyodide.runPython("from specdec_runtime.worker import Engine\nEngine");
}

/** @param {unknown} thrown @returns {Error} */
function bootFault(thrown) {
  if (thrown instanceof ArtifactError || thrown instanceof DeviceFault) return thrown;
  const why = thrown instanceof Error ? thrown.message.trim().split("\n").at(-1) : String(thrown);
  return new DeviceFault(`Python did not start in the browser: ${why}`, "Pyodide", "Use a current browser, then load again");
}

/** Python, started at once so that it boots while the bundle downloads. */
export class PythonHost {
  constructor() {
    const late = () => new DeviceFault("Python did not start in time", "Pyodide", "Load the page again");
    this.booted = withTimeout(boot(), BOOT_MS, late).catch((thrown) => {
      throw bootFault(thrown);
    });
    /** Python objects that JavaScript holds. @type {{destroy: () => void}[]} */
    this.proxies = [];
    this.booted.catch(() => {}); // heard by engine(); a page that is never asked to load stays quiet
  }

  /**
   * @param {string} planText @param {object} programs what the self-test left to use @param {string} policyText "": the bundle has none
   * @returns {Promise<Engine>}
   */
  async engine(planText, programs, policyText) {
    const Engine = await this.booted;
    for (const proxy of this.proxies.splice(0)) proxy.destroy(); // the engine of the bundle before
    const made = call(() => Engine(planText, JSON.stringify(programs), policyText), "Engine");
    const { ready, start, send, fail, tokens, cancel, probes, measured } = made; // kept: each attribute access would make a new proxy
    this.proxies.push(made, ready, start, send, fail, tokens, cancel, probes, measured);
    const state = JSON.parse(call(() => ready(), "Engine.ready"));
    if (state.type === "error") throw errorFromJson(state.error);
    return {
      start: (request) => call(() => start(request), "Engine.start"),
      send: (readback) => call(() => send(readback), "Engine.send"),
      fail: (error) => call(() => fail(error), "Engine.fail"),
      tokens: (table) => call(() => tokens(table), "Engine.tokens"),
      cancel: () => call(() => cancel(), "Engine.cancel"),
      probes: (split) => call(() => probes(split), "Engine.probes"),
      measured: (times) => call(() => measured(times), "Engine.measured"),
      state,
    };
  }
}

/**
 * A call into Python; an exception that Python did not turn into an effect is a bug.
 * @template T
 * @param {() => T} work @param {string} where
 * @returns {T}
 */
function call(work, where) {
  try {
    return work();
  } catch (error) {
    const text = String(/** @type {Error} */ (error).message).trim().split("\n").at(-1);
    throw new ContractError(`Python failed: ${text}`, where, "This is a bug in specdec: please report it");
  }
}
