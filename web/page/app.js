// The chat page: joins the form, the client and the view. `window.specdec` is the same client, for scripts.

import { Client } from "./client.js";
import { Conversation } from "./conversation.js";
import { Counts, showResult, summary } from "./counts.js";
import { offerSettings, settings, watchSettings } from "./settings.js";
import { Answer, Log, element, hideFault, offer, showFault, showLoaded, showProgress } from "./view.js";

/** @typedef {import("./conversation.js").Message} Message */

const SESSION = "page"; // what a chat, or the one before it, begins with is not read again

const client = new Client();
const log = new Log();
const query = new URLSearchParams(location.search);

let conversation = new Conversation();
let address = ""; // the bundle that was asked for last
/** The answer that runs. @type {{cancel: () => void} | null} */
let running = null;

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
    offerSettings(loaded);
    input("prompt").placeholder = loaded.model.has_template ? "Ask something" : "Write the beginning of a text";
  } catch (error) {
    element("loading").hidden = true;
    offerLoad();
    showFault(error);
  }
  setRunning(false);
}

/** @typedef {{cycle: (fields: Record<string, any>) => void, reading: (progress: Record<string, any>) => void}} Listener */

/** A text continued, where the model has no chat template. @param {string} prompt @param {Listener} hear @returns {Promise<any>} */
function continued(prompt, { cycle, reading }) {
  running = client;
  return client.generate({ prompt, raw: true, ...settings() }, (_text, fields) => cycle(fields), reading);
}

/** @param {Message[]} messages @param {Listener} hear @returns {Promise<any>} */
async function answered(messages, { cycle, reading }) {
  const body = { messages, ...settings(), session: SESSION, stream: true, stream_options: { include_usage: true } };
  const stream = await client.chat.completions.create(body, { onProgress: reading });
  running = stream;
  let result = {};
  for await (const { choices, specdec, usage } of stream) {
    if (specdec?.pieces) cycle(specdec);
    else if (choices[0]?.finish_reason) result = { ...specdec, finish_reason: choices[0].finish_reason };
    if (usage) result = { ...result, usage };
  }
  return result;
}

/** Says it, after the first `length` turns. @param {string} said @param {number} [length] */
async function ask(said, length = conversation.entries.length) {
  hideFault();
  conversation.cut(length);
  const mine = conversation;
  const userTurn = log.turn("user", said);
  mine.add("user", said, userTurn);
  const answer = new Answer(log);
  const counts = new Counts();
  const hear = {
    cycle: (/** @type {Record<string, any>} */ fields) => {
      answer.add(fields.pieces, fields.num_accepted);
      counts.add(fields);
    },
    reading: (/** @type {Record<string, any>} */ { done, total }) => answer.reading(done, total),
  };
  let kept = true;
  setRunning(true);
  try {
    const result = await (client.loaded?.model.has_template ? answered(mine.messages, hear) : continued(said, hear));
    answer.end(summary(result));
    showResult(result);
  } catch (error) {
    answer.end("");
    if (!client.loaded) offerLoad(); // the worker is gone
    if (/** @type {Error} */ (error).name !== "AbortError") showFault(error); // it was stopped before it began
    kept = answer.text !== "";
  }
  running = null;
  if (mine === conversation) (kept ? keep : takeBack)(userTurn, answer, said);
  setRunning(false);
}

/** Nothing was answered: what was said can be changed and sent again. @param {HTMLElement} userTurn @param {Answer} answer @param {string} said */
function takeBack(userTurn, answer, said) {
  answer.turn.remove();
  conversation.cut(conversation.place(userTurn));
  input("prompt").value ||= said;
}

/** Both turns are the chat's, and can be changed. @param {HTMLElement} userTurn @param {Answer} answer @param {string} said */
function keep(userTurn, answer, said) {
  conversation.add("assistant", answer.text, answer.turn);
  offer(userTurn, "Edit", () => edit(userTurn, said));
  offer(answer.turn, "Regenerate", () => {
    if (!running) void ask(said, conversation.place(userTurn));
  });
}

/** What is sent next takes the place of this turn and of all after it. @param {HTMLElement} turn @param {string} said */
function edit(turn, said) {
  if (running) return;
  leaveEdit();
  turn.classList.add("editing");
  input("prompt").value = said;
  input("prompt").focus();
}

/** @returns {number | undefined} where the turn that was edited stands */
function leaveEdit() {
  const turn = element("log").querySelector(".editing");
  turn?.classList.remove("editing");
  return turn ? conversation.place(/** @type {HTMLElement} */ (turn)) : undefined;
}

function send() {
  const said = input("prompt").value.trim();
  if (!said || input("send").hidden) return;
  input("prompt").value = "";
  void ask(said, leaveEdit());
}

function newChat() {
  running?.cancel();
  conversation = new Conversation(); // an answer that still runs belongs to the old one
  log.clear();
  hideFault();
}

function listen() {
  element("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  element("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && leaveEdit() !== undefined) input("prompt").value = "";
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  element("open").addEventListener("submit", (event) => {
    event.preventDefault();
    void load(input("bundle").value);
  });
  element("stop").addEventListener("click", () => running?.cancel());
  element("new-chat").addEventListener("click", newChat);
  element("fault-close").addEventListener("click", hideFault);
  element("mark").addEventListener("change", () => document.body.classList.toggle("marks", input("mark").checked));
  document.body.classList.toggle("marks", input("mark").checked);
  watchSettings();
}

Object.assign(window, { specdec: client });
listen();
const bundle = query.get("bundle");
if (bundle) void load(bundle);
else if (!query.has("idle")) offerLoad();
