// What the page shows: small functions from values to the screen. They decide nothing and ask nobody.

import { asSpecdecError } from "../executor/faults.js";

/** @template {HTMLElement} T @param {string} id @returns {T} */
export function element(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element #${id}`);
  return /** @type {T} */ (found);
}

/** @param {string} id @param {string} text */
export function show(id, text) {
  element(id).textContent = text;
}

/** @param {number} bytes @returns {string} */
export function size(bytes) {
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(bytes < 10240 ? 1 : 0)} KiB`;
  return `${(bytes / 2 ** 20).toFixed(bytes < 100 * 2 ** 20 ? 1 : 0)} MiB`;
}

/** @param {number} ms @returns {string} */
export function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** @param {unknown} thrown */
export function showFault(thrown) {
  const error = asSpecdecError(thrown, "page");
  show("fault-type", `${error.type}:`);
  show("fault-text", error.toString());
  element("fault").hidden = false;
}

export function hideFault() {
  element("fault").hidden = true;
}

/** @param {{weight: number, kv: number, state: number, scratch: number, total: number}} memory */
export function showMemory(memory) {
  const rows = [
    ["weights", memory.weight],
    ["KV cache", memory.kv],
    ["state and scratch", memory.state + memory.scratch],
    ["total", memory.total],
  ];
  const made = rows.map(([name, bytes]) => {
    const row = document.createElement("div");
    row.className = name === "total" ? "total" : "";
    const term = document.createElement("dt");
    const value = document.createElement("dd");
    term.textContent = String(name);
    value.textContent = size(Number(bytes));
    row.append(term, value);
    return row;
  });
  element("memory").replaceChildren(...made);
}

/** Progress of a load. @param {Record<string, any>} progress */
export function showProgress(progress) {
  element("loading").hidden = false;
  if (progress.stage === "plan") {
    show("stage", `Loading ${progress.name}`);
    show("detail", progress.reason ? `Running on the CPU: ${progress.reason}` : "");
    show("model", progress.name);
    showMemory(progress.memory);
  }
  if (progress.stage === "load") {
    const { bytes, total_bytes: total, kernels_done: done, kernels_total: kernels } = progress;
    element("bar").setAttribute("value", String(total ? bytes / total : 0));
    const compiled = kernels > 1 ? `, ${done} of ${kernels} kernels` : "";
    show("bytes", `${size(bytes)} of ${size(total)}${compiled}`);
  }
  if (progress.stage === "selftest") {
    show("stage", "Testing this GPU");
    show("bytes", `${progress.done} of ${progress.total}`);
  }
  if (progress.stage === "python") show("stage", "Starting Python");
}

/** @type {Record<string, string>} */
const SELF_TEST = {
  "row-invariant": "rows equal",
  "reduced: row-invariant": "rows equal, reduced",
  widest: "rows differ by width, one program for all",
  plain: "rows differ, speculation off",
};

/** @param {{verdict: string, passes: number, ms: number}} test @returns {string} */
export function selfTestText({ verdict, passes, ms }) {
  return `self-test: ${SELF_TEST[verdict] ?? verdict}${passes ? ` (${passes} passes, ${duration(ms)})` : ""}`;
}

/** @param {Record<string, any>} loaded what a load reported */
export function showLoaded(loaded) {
  const { device, model, reason } = loaded;
  element("loading").hidden = true;
  element("hello").hidden = false;
  show("model", model.name);
  element("model").title = `${model.license}; draft: ${model.draft_provenance}`;
  const badge = element("device");
  badge.hidden = false;
  badge.textContent = device.backend === "wasm" ? "CPU (WebAssembly)" : `GPU (${device.adapter})`;
  const threads = device.threads > 1 ? `, ${device.threads} threads` : device.threads_reason && `, one thread: ${device.threads_reason}`;
  const why = reason ? ` (${reason})` : "";
  const test = selfTestText(device.self_test);
  const unproven = model.draft_provenance === "unproven" ? "; draft of unknown origin" : "";
  const loadedIn = `loaded in ${duration(loaded.load_ms)}`;
  const detail = `${device.backend}: ${device.adapter}${threads ?? ""}${why}, ${loadedIn}; ${test}${unproven}; ${costsText(loaded.costs)}`;
  badge.title = detail;
  show("device-detail", detail);
  showMemory(loaded.memory);
}

/** @param {any} costs @returns {string} ms of passes, as the schedules know them */
function costsText({ sync, verify, draft_step: draft, how }) {
  const rows = Object.entries(verify).map(([width, ms]) => `${width}: ${ms.toFixed(1)}`);
  const step = draft === null ? "" : `, draft step ${draft.toFixed(2)}`;
  return `costs ${how}, ms: submit ${sync.toFixed(1)}, rows ${rows.join(", ")}${step}`;
}

/** The tiles beside the chat; one that has no value yet shows a dash. @param {Record<string, string>} values */
export function showTiles(values) {
  for (const id of ["speed", "first", "drafted", "accepted", "per-pass", "count"]) show(id, values[id] ?? "\u2013");
}

/** @param {number} accepted @param {number} drafted */
export function showRate(accepted, drafted) {
  element("rate").style.width = `${drafted ? (100 * accepted) / drafted : 0}%`;
}

/** The turns of the chat. */
export class Log {
  constructor() {
    this.box = element("log");
  }

  /** @param {string} kind @param {string} text @returns {HTMLElement} its text lies in a `.said`, below it what can be done with it */
  turn(kind, text) {
    element("hello").hidden = true;
    const turn = document.createElement("div");
    turn.className = `turn ${kind}`;
    const said = document.createElement("span");
    said.className = "said";
    said.textContent = text;
    turn.append(said);
    this.box.append(turn);
    this.toEnd();
    return turn;
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
  }

  clear() {
    for (const turn of this.box.querySelectorAll(".turn")) turn.remove();
    element("hello").hidden = false;
  }
}

/** A button under a turn. @param {HTMLElement} turn @param {string} name @param {() => void} act */
export function offer(turn, name, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet act";
  button.textContent = name;
  button.addEventListener("click", act);
  turn.append(button);
}

/** One answer that grows; drafts that were accepted are marked. */
export class Answer {
  /** @param {Log} log */
  constructor(log) {
    this.log = log;
    this.turn = log.turn("answer running waiting", "");
    this.turn.dataset.wait = "thinking";
    this.said = /** @type {HTMLElement} */ (this.turn.querySelector(".said"));
  }

  /** @returns {string} */
  get text() {
    return this.said.textContent ?? "";
  }

  /** @param {number} done @param {number} total */
  reading(done, total) {
    this.turn.dataset.wait = `reading ${done} of ${total} tokens`;
  }

  /** @param {string[]} pieces @param {number} accepted the first so many were drafted */
  add(pieces, accepted) {
    const { box } = this.log;
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    pieces.forEach((text, i) => {
      if (text === "") return;
      this.turn.classList.remove("waiting");
      const span = document.createElement("span");
      span.className = i < accepted ? "accepted" : "";
      span.textContent = text;
      this.said.append(span);
    });
    if (follows) this.log.toEnd();
  }

  /** @param {string} note said under the answer */
  end(note) {
    this.turn.classList.remove("running", "waiting");
    if (!note) return;
    const line = document.createElement("span");
    line.className = "note";
    line.textContent = note;
    this.turn.append(line);
  }
}
