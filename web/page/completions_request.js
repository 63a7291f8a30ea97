// A request in the shape of OpenAI's chat completions, as a request of `generate`.
//
// Does not know: the worker, streams. Twin of specdec_tools/chat_request.py: the same requests, the same refusals. Invariants: null is
// as if left out; a field that is not served is refused by its name, never ignored; numbers are judged by the decode core.

import { RequestError } from "../executor/faults.js";

/** @typedef {Record<string, any>} Fields */

const LEAVE = "Leave it out";
const MAX_TOP_LOGPROBS = 5;
// Handed on under the same name: OpenAI's first, then ours.
const SAME = [
  "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty",
  "top_k", "min_p", "repetition_penalty", "min_tokens", "bad_words", "allowed_ids", "ignore_eos",
  "mode", "drafter", "k", "schedule", "rounds", "plain_steps", "session",
];
const READ = [
  "model", "messages", "max_tokens", "max_completion_tokens", "stop", "logprobs", "top_logprobs", "logit_bias", "response_format",
  "n", "stream", "stream_options",
];
const DEFAULTS = { drafter: "chain", schedule: "auto" };
const MOST_DRAFTS = { auto: 7, fixed: 4 };
/** @type {Record<string, string>} */
const ROLES = { system: "system", developer: "system", user: "user", assistant: "assistant" };

/** @param {unknown} value @returns {value is Fields} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {boolean} good @param {string} message @param {string} where @param {string} action */
function check(good, message, where, action = LEAVE) {
  if (!good) throw new RequestError(message, where, action);
}

/** The fields that are given; another one than those known is refused. @param {unknown} given @param {readonly string[]} known @param {string} where @returns {Fields} */
function fields(given, known, where) {
  if (!isObject(given)) throw new RequestError(`${where || "the request"} is not an object`, where || "request", "Give an object");
  const present = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null && value !== undefined));
  for (const name of Object.keys(present)) {
    const path = where ? `${where}.${name}` : name;
    check(known.includes(name), `${path} is not supported`, path);
  }
  return present;
}

/** @param {unknown} content @param {string} where @returns {string} */
function contentText(content, where) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) throw new RequestError(`${where} is not text`, where, "Give a string, or parts of text");
  return content
    .map((part, i) => {
      const { type, text } = fields(part, ["type", "text"], `${where}[${i}]`);
      check(type === "text", `${where}[${i}] is no text`, `${where}[${i}].type`, "Give parts of type text");
      check(typeof text === "string", `${where}[${i}] has no text`, `${where}[${i}].text`, "Give a string");
      return text;
    })
    .join("");
}

/** @param {unknown} messages @returns {{role: string, content: string}[]} */
function readMessages(messages) {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw new RequestError("messages is empty or not a list", "messages", "Give at least one message");
  }
  return messages.map((message, i) => {
    const where = `messages[${i}]`;
    const { role, content } = fields(message, ["role", "content"], where);
    check(typeof role === "string" && Object.hasOwn(ROLES, role), `${where} has role ${JSON.stringify(role)}`, `${where}.role`, `Use one of ${Object.keys(ROLES).join(", ")}`);
    return { role: ROLES[role], content: contentText(content, `${where}.content`) };
  });
}

/** @param {Fields} body @returns {Fields} what `stop`, `logprobs` and `logit_bias` ask for */
function readText({ stop, logprobs, top_logprobs: top, logit_bias: bias }) {
  const strings = typeof stop === "string" ? [stop] : stop;
  const good = strings === undefined || (Array.isArray(strings) && strings.every((text) => typeof text === "string" && text !== ""));
  check(good, "stop is no text", "stop", "Give a string, or a list of them, none empty");
  check(logprobs === undefined || typeof logprobs === "boolean", "logprobs is not true or false", "logprobs", "Give true or false");
  if (top !== undefined) {
    check(Number.isInteger(top) && top >= 0 && top <= MAX_TOP_LOGPROBS, `top_logprobs is ${top}`, "top_logprobs", `Give a whole number from 0 to ${MAX_TOP_LOGPROBS}`);
    check(logprobs === true, "top_logprobs needs logprobs", "top_logprobs", "Set logprobs to true");
  }
  if (bias !== undefined) {
    check(isObject(bias) && Object.keys(bias).every((id) => /^[0-9]+$/.test(id)), "logit_bias is no map of token ids", "logit_bias", "Give {id: number}");
  }
  return {
    ...(strings?.length && { stop: strings }),
    ...(logprobs && { logprobs: Math.max(1, top ?? 0) }), // `generate` tells them with at least one of the likeliest
    ...(bias !== undefined && { logit_bias: bias }),
  };
}

/** @param {unknown} given @returns {Fields} the grammar of a response format */
function readFormat(given) {
  if (given === undefined) return {};
  const { type, json_schema: named } = fields(given, ["type", "json_schema"], "response_format");
  check(named === undefined || type === "json_schema", "json_schema needs type json_schema", "response_format.json_schema");
  if (type === "text") return {};
  if (type === "json_object") return { grammar: { type: "json_schema", schema: { type: "object" } } };
  check(type === "json_schema", `response_format.type is ${JSON.stringify(type)}`, "response_format.type", "Use text, json_object or json_schema");
  const where = "response_format.json_schema";
  const { schema } = fields(named, ["name", "strict", "schema"], where); // a schema is always kept strictly; its name is a label
  check(isObject(schema), "there is no schema", `${where}.schema`, "Give a JSON schema");
  return { grammar: { type: "json_schema", schema } };
}

/** @param {Fields} body @returns {boolean} is usage a chunk of its own? */
function readStream({ stream, stream_options: options }) {
  check(stream === undefined || typeof stream === "boolean", "stream is not true or false", "stream", "Give true or false");
  if (options === undefined) return false;
  check(stream === true, "stream_options needs stream", "stream_options");
  const { include_usage: usage } = fields(options, ["include_usage"], "stream_options");
  check(usage === undefined || typeof usage === "boolean", "include_usage is not true or false", "stream_options.include_usage", "Give true or false");
  return usage === true;
}

/** @param {Fields} body @returns {Fields} */
function readLimit({ max_tokens: old, max_completion_tokens: max }) {
  check(old === undefined || max === undefined, "max_tokens and max_completion_tokens are the same", "max_completion_tokens", "Give one of them");
  const limit = max ?? old;
  return limit === undefined ? {} : { max_tokens: limit };
}

/**
 * @param {unknown} body
 * @returns {{model: string | undefined, stream: boolean, includeUsage: boolean, topLogprobs: number, request: Fields}} request: of `generate`, `max_tokens`
 *   where it was given
 */
export function readCompletion(body) {
  const given = fields(body, [...READ, ...SAME], "");
  const { model, n } = given;
  check(model === undefined || typeof model === "string", "model is not text", "model", "Give the bundle's name, or leave it out");
  check(n === undefined || n === 1, `n is ${JSON.stringify(n)}`, "n", "Only 1 is supported");
  const includeUsage = readStream(given);
  const same = Object.fromEntries(SAME.filter((name) => given[name] !== undefined).map((name) => [name, given[name]]));
  const messages = readMessages(given.messages);
  const k = given.schedule === "fixed" ? MOST_DRAFTS.fixed : MOST_DRAFTS.auto;
  const asked = { ...DEFAULTS, k, ...same, messages };
  const request = { ...asked, ...readLimit(given), ...readText(given), ...readFormat(given.response_format) };
  return { model, stream: given.stream === true, includeUsage, topLogprobs: given.top_logprobs ?? 0, request };
}
