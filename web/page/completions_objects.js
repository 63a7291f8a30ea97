// The parts of OpenAI's completion objects, from what a result or a cycle of `generate` says.
//
// Does not know: requests, streams, the worker. Twin of specdec_tools/chat_types.py.

/** @typedef {Record<string, any>} Fields */

const decoder = new TextDecoder();

/** What every object of one answer begins with; the model is known when its turn comes. @returns {Fields} */
export function newHead() {
  const digits = Array.from({ length: 24 }, () => Math.floor(Math.random() * 36).toString(36)).join("");
  return { id: `chatcmpl-${digits}`, created: Math.floor(Date.now() / 1000), model: "" };
}

/** @param {Fields} usage @returns {Fields} */
export function usageOf({ prompt_tokens, completion_tokens, cached_tokens }) {
  const total_tokens = prompt_tokens + completion_tokens;
  return { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details: { cached_tokens } };
}

/** What a result says beyond OpenAI's fields. @param {Fields} result @returns {Fields} */
export function extras({ prompt_ids, token_ids, stop, seed, speculation, timing_ms, device }) {
  return { prompt_ids, token_ids, stop, seed, speculation, timing_ms, device };
}

/**
 * @param {Fields[]} entries `logprobs` of a cycle @param {Record<number, number[]>} shown the bytes of their ids @param {number} numTop
 * @returns {Fields[]}
 */
export function tokenLogprobs(entries, shown, numTop) {
  /** @param {Fields} entry @returns {Fields} */
  const said = ({ id, logprob }) => ({ token: decoder.decode(Uint8Array.from(shown[id])), logprob, bytes: shown[id] });
  return entries.map(({ top, ...entry }) => ({ ...said(entry), top_logprobs: top.slice(0, numTop).map(said) }));
}

/** @param {Fields[] | null} content @returns {Fields | null} */
export const logprobsOf = (content) => content && { content, refusal: null };
