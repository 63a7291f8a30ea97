// plan.json to a plan object: a strict reader with the rules of specdec_runtime/plan (codec.py and schema.py).
//
// Invariants: an unknown, missing or mistyped key is an ArtifactError whose `where` is its JSON path; no floats, no
// defaults; the same fixtures get the same verdict and path in Python. plan_check.js checks what a type cannot say.

import { ArtifactError } from "./faults.js";
import { checkPlan } from "./plan_check.js";
import { Fraction, parseStrict } from "./strict_json.js";

/** @typedef {import("./strict_json.js").Json} Json */
/** @typedef {(value: Json, path: string) => any} Reader */

const REBUILD = "Rebuild the bundle with this version of specdec-compile";

/** @param {string} path @param {string} message @returns {never} */
export function fail(path, message) {
  throw new ArtifactError(`plan.json: ${message}`, path, REBUILD);
}

/** @param {Json} value @returns {string} */
function short(value) {
  const plain = JSON.stringify(value, (_, part) => (part instanceof Map ? Object.fromEntries(part) : part));
  return plain.length <= 40 ? plain : `${plain.slice(0, 37)}...`;
}

/** @param {boolean} holds @param {Json} value @param {string} path @param {string} wanted */
function expect(holds, value, path, wanted) {
  if (!holds) fail(path, `expected ${wanted}, found ${short(value)}`);
}

/** @type {Reader} */
function int(value, path) {
  expect(typeof value === "number", value, path, "an integer");
  expect(Number.isSafeInteger(value), value, path, "an integer of at most 53 bits");
  return value;
}

/** @type {Reader} */
function str(value, path) {
  expect(typeof value === "string", value, path, "a string");
  return value;
}

/** @type {Reader} */
function bool(value, path) {
  expect(typeof value === "boolean", value, path, "true or false");
  return value;
}

/** @param {Reader} reader @returns {Reader} */
function orNull(reader) {
  return (value, path) => (value === null ? null : reader(value, path));
}

/** @type {Reader} */
function intOrStr(value, path) {
  return typeof value === "number" ? int(value, path) : str(value, path);
}

/** @param {(string | number)[]} choices @returns {Reader} */
function oneOf(...choices) {
  return (value, path) => {
    if (choices.includes(/** @type {any} */ (value))) return value;
    return fail(path, `expected one of ${choices.join(", ")}, found ${short(value)}`);
  };
}

/** @param {Reader} item @param {number} [length] @returns {Reader} */
function list(item, length) {
  return (value, path) => {
    if (!Array.isArray(value)) return fail(path, `expected a list, found ${short(value)}`);
    if (length !== undefined && value.length !== length) fail(path, `expected a list of ${length}, found ${value.length}`);
    return value.map((part, index) => item(part, `${path}[${index}]`));
  };
}

/** @param {Reader} item @returns {Reader} */
function map(item) {
  return (value, path) => {
    if (!(value instanceof Map)) return fail(path, `expected an object, found ${short(value)}`);
    return Object.fromEntries([...value].map(([key, part]) => [key, item(part, `${path}.${key}`)]));
  };
}

/** @param {Record<string, Reader>} readers @returns {Reader} */
function record(readers) {
  return (value, path) => {
    if (!(value instanceof Map)) return fail(path, `expected an object, found ${short(value)}`);
    for (const key of value.keys()) if (!Object.hasOwn(readers, key)) fail(`${path}.${key}`, "unknown key");
    for (const key of Object.keys(readers)) if (!value.has(key)) fail(`${path}.${key}`, "missing key");
    return Object.fromEntries(
      Object.entries(readers).map(([key, reader]) => [key, reader(/** @type {Json} */ (value.get(key)), `${path}.${key}`)]),
    );
  };
}

const IDS = record({ recipe: str, weights: str, tokenizer: str, chat_template: orNull(str), kernels: str });
const TEXT = record({ bos_id: orNull(int), add_bos: bool, eos_ids: list(int), special_ids: list(int) });
const MODEL = record({
  role: oneOf("target", "draft"), name: str, architecture: str, vocab_size: int, padded_vocab: int, max_context: int,
  num_layers: int, hidden: int, ffn: int, num_heads: int, num_kv_heads: int, head_dim: int, page_size: int,
  num_pages: int, prefill_width: int, widths: list(int),
});
const BUFFER = record({
  name: str, bytes: int, lifetime: oneOf("weight", "kv", "state", "scratch"), files: list(str),
});
const TENSOR = record({
  name: str, buffer: int, offset: int, dtype: oneOf("int8", "uint8", "int16", "int32", "uint32", "float32"),
  shape: list(int),
});
const ARG = record({ name: str, access: oneOf("read", "write", "read_write") });
const KERNEL = record({
  name: str, op: str, entry: str, args: list(ARG), params: map(intOrStr), row_invariant: bool,
  workgroup: list(int, 3), source: list(int, 2), bindings: list(int),
});
const DISPATCH = record({ kernel: int, tensors: list(int), grid: list(int, 3) });
const PROGRAM = record({ name: str, model: str, width: int, dispatches: list(DISPATCH) });
const TARGET = record({
  name: str, module: str, features: list(str), limits: map(int), buffers: list(BUFFER), tensors: list(TENSOR),
  kernels: list(KERNEL), programs: list(PROGRAM),
});
const PLAN = record({
  format: oneOf("specdec-plan"), version: oneOf(1), name: str, ids: IDS, text: TEXT, models: list(MODEL),
  targets: list(TARGET),
});

/** Another version has other keys: say so before complaining about them. @param {Json} data */
function checkVersion(data) {
  if (!(data instanceof Map) || !data.has("format") || !data.has("version")) return;
  if (data.get("format") !== "specdec-plan") fail("$.format", "this is not a specdec plan");
  const version = data.get("version");
  if (typeof version === "number" && version !== 1) {
    fail("$.version", `this runtime reads plan version 1, not ${version}`);
  }
}

/** @param {string} text @returns {Json} */
function parse(text) {
  try {
    return parseStrict(text);
  } catch (error) {
    return fail("$", `not valid JSON: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * A plan that is well formed and consistent, or an ArtifactError that names the place.
 * @param {string} text
 * @returns {import("./types.js").Plan}
 */
export function loadPlan(text) {
  const data = parse(text);
  checkVersion(data);
  const plan = PLAN(data, "$");
  checkPlan(plan, fail);
  return plan;
}

export { Fraction };
