// The chat page: joins the form, the client and the view. `window.specdec` is the same client, for scripts.

import { Client } from "./client.js";
import { Answer, Log, duration, element, hideFault, showFault } from "./view.js";
import { showLoaded, showProgress, showRate, showTiles } from "./view.js";

/** @typedef {{role: string, content: string}} Message */

const AUTO = "auto"; // the schedule that the bundle's policy names

const client = new Client();
const log = new Log();
const query = new URLSearchParams(location.search);

/** @type {Message[]} */
let history = [];
let address = ""; // the bundle that was asked for last
let generation = 0; // a new chat leaves an answer that still runs behind

/** @param {string} id @returns {HTMLInputElement} */
const input = (id) => element(id);

/** @param {boolean} running */
function setRunning(running) {
  const usable = client.loaded !== null;
  element("stop").hidden = !running;
  element("send").hidden = running;
  input("send").disabled = !usable;
  input("prompt").disabled = !usable;
  input("new-chat").disabled = !usable;
  if (!running && usable) input("prompt").focus();
}

function offerLoad() {
  element("open").hidden = false;
  input("bundle").value = address;
}

/** What the address asks for. */
function loadOptions() {
  const threads = query.get("threads");
  return { backend: query.get("backend") ?? "auto", ...(threads !== null && { threads: Number(threads) }) };
}

/** @param {string} url */
async function load(url) {
  hideFault();
  address = url;
  element("open").hidden = true;
  showProgress({ stage: "start" });
  try {
    const loaded = await client.load(url, { ...loadOptions(), costs: true, onProgress: showProgress });
    showLoaded(loaded);
    const hasDraft = loaded.model.roles.includes("draft");
    for (const option of element("drafter").querySelectorAll("option")) {
      option.disabled = !hasDraft && option.value === "model"; // a chain is lookups alone then
    }
    for (const option of element("schedule").querySelectorAll("option")) {
      option.disabled = ![AUTO, ...loaded.schedules].includes(option.value);
    }
    input("prompt").placeholder = loaded.model.has_template ? "Ask something" : "Write the beginning of a text";
  } catch (error) {
    element("loading").hidden = true;
    offerLoad();
    showFault(error);
  }
  setRunning(false);
}

/** Counts of the answer that runs. */
class Counts {
  constructor() {
    this.start = performance.now();
    this.first = 0;
    this.tokens = 0;
    this.drafted = 0;
    this.accepted = 0;
    this.passes = 0;
  }

  /** @param {Record<string, any>} fields one cycle */
  add({ ids, num_drafted, num_accepted }) {
    if (ids.length === 0) return;
    this.first ||= performance.now();
    this.tokens += ids.length;
    this.drafted += num_drafted;
    this.accepted += num_accepted;
    this.passes += 1;
    this.show();
  }

  show() {
    const seconds = (performance.now() - this.first) / 1000;
    showTiles({
      ...(this.passes > 1 && { speed: ((this.tokens - 1) / seconds).toFixed(1) }),
      count: String(this.tokens),
      drafted: String(this.drafted),
      accepted: String(this.accepted),
      first: duration(this.first - this.start),
      "per-pass": (this.tokens / this.passes).toFixed(2),
    });
    showRate(this.accepted, this.drafted);
  }
}

/** The worker's own figures, once the answer is whole. @param {any} result */
function showResult({ usage, speculation, timing_ms: ms }) {
  const { num_drafted: drafted, num_accepted: accepted, num_target_passes: passes } = speculation;
  const tokens = usage.completion_tokens;
  showTiles({
    count: String(tokens),
    drafted: String(drafted),
    accepted: String(accepted),
    ...(ms.first_token !== null && { first: duration(ms.first_token) }),
    ...(passes > 0 && { "per-pass": (tokens / passes).toFixed(2) }),
    ...(ms.decode > 0 && { speed: ((1000 * tokens) / ms.decode).toFixed(1) }),
  });
  showRate(accepted, drafted);
}

/** @param {any} schedule @returns {string} what was tried, most often first */
function scheduleText({ name, choices }) {
  const counted = Object.entries(choices).sort(([, a], [, b]) => b - a);
  return `${name.replace("_", "-")}: ${counted.map(([choice, count]) => `${choice} \u00d7${count}`).join(", ") || "nothing"}`;
}

/** @param {any} result @returns {string} */
function summary({ usage, speculation, timing_ms: ms, finish_reason: reason }) {
  const speed = ms.decode > 0 ? (1000 * usage.completion_tokens) / ms.decode : 0;
  const parts = [
    `${usage.completion_tokens} tokens at ${speed.toFixed(1)} a second`,
    `${speculation.num_accepted} of ${speculation.num_drafted} drafts accepted`,
    `prompt of ${usage.prompt_tokens} read in ${duration(ms.prefill)}`,
  ];
  if (speculation.drafter !== "off") parts.push(scheduleText(speculation.schedule));
  if (speculation.fallbacks.rows_differ) parts.push("no drafts: this GPU's rows differ");
  if (reason === "length") parts.push("cut at the longest answer");
  if (reason === "cancelled") parts.push("stopped");
  return parts.join(", ");
}

/** @param {string} said @returns {Record<string, any>} */
function requestOf(said) {
  const settings = {
    max_tokens: Number(input("max-tokens").value),
    drafter: input("drafter").value,
    k: Number(input("k").value),
    schedule: input("schedule").value,
  };
  if (!client.loaded?.model.has_template) return { prompt: said, raw: true, ...settings };
  return { messages: [...history, { role: "user", content: said }], ...settings };
}

/** @param {string} said */
async function ask(said) {
  hideFault();
  const mine = generation;
  const request = requestOf(said);
  const userTurn = log.turn("user", said);
  const answer = new Answer(log);
  const counts = new Counts();
  const onText = (/** @type {string} */ _text, /** @type {Record<string, any>} */ fields) => {
    answer.add(fields.pieces, fields.num_accepted);
    counts.add(fields);
  };
  showTiles({});
  showRate(0, 0);
  setRunning(true);
  try {
    const result = await client.generate(request, onText, ({ done, total }) => answer.reading(done, total));
    answer.end(summary(result));
    showResult(result);
    if (mine === generation) history.push({ role: "user", content: said }, { role: "assistant", content: result.text });
  } catch (error) {
    answer.end("");
    if (!answer.turn.textContent) {
      answer.turn.remove();
      userTurn.remove();
      input("prompt").value ||= said; // so that it can be changed and sent again
    }
    if (!client.loaded) offerLoad(); // the worker is gone
    showFault(error);
  }
  setRunning(false);
}

function send() {
  const said = input("prompt").value.trim();
  if (!said || input("send").hidden) return;
  input("prompt").value = "";
  void ask(said);
}

function newChat() {
  client.cancel();
  generation += 1;
  history = [];
  log.clear();
  hideFault();
}

function listen() {
  element("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  element("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  element("open").addEventListener("submit", (event) => {
    event.preventDefault();
    void load(input("bundle").value);
  });
  element("stop").addEventListener("click", () => client.cancel());
  element("new-chat").addEventListener("click", newChat);
  element("fault-close").addEventListener("click", hideFault);
  element("mark").addEventListener("change", () => document.body.classList.toggle("marks", input("mark").checked));
  document.body.classList.toggle("marks", input("mark").checked);
}

Object.assign(window, { specdec: client });
listen();
const bundle = query.get("bundle");
if (bundle) void load(bundle);
else if (!query.has("idle")) offerLoad();
