// Text in and out of a bundle in the browser: chat template, tokenizer, streamed text.
//
// Does not know: models, devices. Twin of specdec_tools/text.py: the same prompt ids for the same request.
// Rules: chat = the template's text, no token added; raw = the text as it is, after BOS where the model adds one; an
// empty raw prompt is BOS alone, or a RequestError where the model adds none.

import { ArtifactError, RequestError } from "../executor/faults.js";
import { ByteMap, StreamDecoder } from "./byte_map.js";

/** @typedef {import("../executor/types.js").PlanText} PlanText */
/** @typedef {Record<string, any>} Message role and content; what else it has (tool calls, names) is the template's to read */
/**
 * @typedef {{prompt?: string, messages?: Message[], raw?: boolean, system?: string, prompt_ids?: number[]}} PromptRequest
 */

const MAX_BANNED_LEN = 7; // ids in one sequence: specdec_runtime/decode/sampling.py
const VENDOR = new URL("../vendor/", import.meta.url);

/** @param {string} path @returns {Promise<any>} a vendored library */
export async function vendored(path) {
  const url = new URL(path, VENDOR).href;
  try {
    return await import(url);
  } catch (error) {
    const why = /** @type {Error} */ (error).message;
    throw new ArtifactError(`a part of the page is missing: ${why}`, url, "Fill web/vendor with python -m specdec_tools.site");
  }
}

/** @param {string} text @returns {any} */
function parseTokenizer(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ArtifactError("not JSON", "tokenizer.json", "Build the bundle again");
  }
}

/** @param {string} what @param {unknown} value @returns {string} */
function requireText(what, value) {
  if (typeof value !== "string") throw new RequestError(`${what} is not text`, what, "Give a string");
  return value;
}

/** A list of objects, each with a role; their contents are the template's to judge. @param {unknown} messages */
function checkMessages(messages) {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw new RequestError("messages is empty or not a list", "messages", "Give at least one message");
  }
  for (const [index, message] of messages.entries()) {
    const where = `messages[${index}]`;
    if (typeof message !== "object" || message === null || Array.isArray(message)) {
      throw new RequestError(`${where} is not an object`, where, "Give an object with role and content");
    }
    if (typeof message.role !== "string") throw new RequestError(`${where} has no role`, `${where}.role`, "Give a string");
  }
}

export class BundleText {
  /**
   * @param {any} parsed the parsed tokenizer.json
   * @param {import("@huggingface/tokenizers").Tokenizer} tokenizer
   * @param {import("@huggingface/jinja").Template | null} template @param {PlanText} plan
   */
  constructor(parsed, tokenizer, template, plan) {
    this.tokenizer = tokenizer;
    this.template = template;
    this.plan = plan;
    this.map = new ByteMap(parsed, [...plan.special_ids, ...plan.eos_ids]);
  }

  /**
   * @param {string} tokenizerText @param {string | null} templateText @param {PlanText} plan
   * @returns {Promise<BundleText>}
   */
  static async load(tokenizerText, templateText, plan) {
    const [{ Tokenizer }, { Template }] = await Promise.all([
      vendored("tokenizers/tokenizers.mjs"),
      vendored("jinja/index.js"),
    ]);
    const parsed = parseTokenizer(tokenizerText);
    try {
      const tokenizer = new Tokenizer(parsed, {});
      const template = templateText === null ? null : new Template(templateText);
      return new BundleText(parsed, tokenizer, template, plan);
    } catch (error) {
      if (error instanceof ArtifactError) throw error;
      const why = /** @type {Error} */ (error).message;
      throw new ArtifactError(`tokenizer or chat template cannot be read: ${why}`, "tokenizer.json", "Build the bundle again");
    }
  }

  /** @param {string} text @returns {number[]} */
  encode(text) {
    // Lone surrogates have no UTF-8; Python replaces them the same way before it encodes.
    return this.tokenizer.encode(text.toWellFormed?.() ?? text, { add_special_tokens: false }).ids;
  }

  /** @param {number | null} id @returns {string} */
  piece(id) {
    return id === null || id === undefined ? "" : (this.map.pieces.get(id) ?? "");
  }

  /** @param {Message[]} messages @returns {string} */
  render(messages) {
    if (!this.template) {
      throw new RequestError("this model has no chat template", "prompt", "Ask for raw text (--raw)");
    }
    checkMessages(messages);
    try {
      return this.template.render({
        messages,
        add_generation_prompt: true,
        bos_token: this.piece(this.plan.bos_id),
        eos_token: this.piece(this.plan.eos_ids[0]),
      });
    } catch (error) {
      throw new RequestError(`the chat template refused: ${/** @type {Error} */ (error).message}`, "prompt", "Change the messages");
    }
  }

  /** @param {string} text @returns {number[]} */
  rawIds(text) {
    const ids = this.encode(text);
    const { bos_id: bos, add_bos: addBos } = this.plan;
    if (addBos && bos !== null && ids[0] !== bos) ids.unshift(bos);
    if (ids.length === 0) throw new RequestError("the prompt is empty", "prompt", "Give at least one character");
    return ids;
  }

  /** @param {PromptRequest} request @returns {Message[]} */
  messages(request) {
    const { system, messages } = request;
    const said = messages ?? [{ role: "user", content: requireText("prompt", request.prompt) }];
    if (messages !== undefined && messages !== null) checkMessages(messages);
    return system === undefined || system === null ? said : [{ role: "system", content: requireText("system", system) }, ...said];
  }

  /** @param {PromptRequest} request @returns {number[]} the ids to start from */
  promptIds(request) {
    const { prompt_ids: ids } = request;
    if (ids !== undefined && ids !== null) {
      if (!Array.isArray(ids) && !ArrayBuffer.isView(ids)) {
        throw new RequestError("prompt_ids is empty or not a list", "prompt_ids", "Give at least one token id");
      }
      return [...ids];
    }
    if (!request.raw) return this.encode(this.render(this.messages(request)));
    if (request.system) throw new RequestError("a system text needs the chat form", "system", "Leave out raw or system");
    return this.rawIds(requireText("prompt", request.prompt));
  }

  /**
   * Bad words as ids: a text as it stands and after a space, where the two differ; a list is ids already.
   * @param {unknown} words @returns {any[][]}
   */
  bannedIds(words) {
    if (!Array.isArray(words)) throw new RequestError("bad_words is not a list", "bad_words", "Give a list of texts");
    const banned = new Map();
    for (const [index, word] of words.entries()) {
      const where = `bad_words[${index}]`;
      const isText = typeof word === "string" && word !== "";
      if (!isText && !Array.isArray(word)) throw new RequestError(`${where} is no text`, where, "Give a text that is not empty");
      const forms = isText ? [this.encode(word), this.encode(` ${word}`)] : [[...word]];
      const longest = Math.max(...forms.map((form) => form.length));
      if (longest > MAX_BANNED_LEN) {
        throw new RequestError(`${where} is ${longest} tokens long`, where, `Give a text of at most ${MAX_BANNED_LEN} tokens`);
      }
      for (const form of forms) banned.set(JSON.stringify(form), form);
    }
    return [...banned.values()];
  }

  /** The bytes of the ids that log-probabilities are told of. @param {import("./pump.js").Logprob[]} entries @returns {Record<number, number[]>} */
  shown(entries) {
    const ids = entries.flatMap(({ id, top }) => [id, ...top.map((other) => other.id)]);
    return Object.fromEntries(ids.map((id) => [id, [...this.map.bytes(id)]]));
  }

  /** @returns {StreamDecoder} */
  stream() {
    return new StreamDecoder(this.map);
  }

  /** @param {number[]} ids @returns {string} */
  decode(ids) {
    const stream = this.stream();
    return ids.map((id) => stream.push(id)).join("") + stream.finish();
  }
}
