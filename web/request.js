// The fields of `generate`: what they are called, what they are where they are left out, and that they are plain JSON.
//
// Does not know: what the values mean (Python judges them: specdec_runtime/decode/options.py). Twin of `given_fields` in
// specdec_tools/native_run.py. Invariants: null is as if left out; a field that is not known is refused by its name, never ignored; what
// passes survives structured cloning and JSON as it is.

import { RequestError } from "./executor/faults.js";

/** @typedef {Record<string, any>} Fields */

const PROMPT = ["prompt", "prompt_ids", "messages", "raw", "system"];
const DEFAULTS = { max_tokens: 256, drafter: "ngram", k: 4, schedule: "fixed" };
const SEVERAL = ["plain_steps", "rounds"]; // their defaults are the device's
/** What says how tokens are chosen, where the answer ends, and whose KV it may reuse. */
export const OPTIONS = [
  "temperature", "mode", "seed", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
  "logit_bias", "bad_words", "allowed_ids", "min_tokens", "stop", "ignore_eos", "logprobs", "session", "grammar",
];
const KNOWN = new Set([...PROMPT, ...Object.keys(DEFAULTS), ...SEVERAL, ...OPTIONS]);

/** @param {Fields} request @returns {Fields} the fields that are given */
function given(request) {
  return Object.fromEntries(Object.entries(request).filter(([, value]) => value !== null && value !== undefined));
}

/** @param {string} name @param {unknown} value */
function checkJson(name, value) {
  try {
    JSON.stringify(value, (_key, part) => {
      const kind = typeof part;
      if (kind === "bigint") throw new RequestError(`${name} is a BigInt`, name, "Give a number");
      if (kind === "number" && !Number.isFinite(part)) throw new RequestError(`${name} is ${part}`, name, "Give a finite number");
      if (kind === "function" || kind === "symbol") throw new RequestError(`${name} holds a ${kind}`, name, "Give plain JSON values");
      return part;
    });
  } catch (error) {
    if (error instanceof RequestError) throw error;
    throw new RequestError(`${name} is no JSON: ${/** @type {Error} */ (error).message}`, name, "Give plain JSON values");
  }
}

/** Before a request leaves the page. @param {Fields} request @returns {Fields} the fields that are given; RequestError names a bad one */
export function checkFields(request) {
  if (typeof request !== "object" || request === null) throw new RequestError("the request is not an object", "request", "Give an object");
  const fields = given(request);
  for (const [name, value] of Object.entries(fields)) {
    if (!KNOWN.has(name)) throw new RequestError(`${name} is not supported`, name, "Leave it out");
    checkJson(name, value);
  }
  return fields;
}

/** @param {Fields} request @param {{plain_steps: number, rounds: number}} several of this device @returns {Fields} */
export function withDefaults(request, several) {
  return { ...DEFAULTS, ...several, ...given(request) };
}
