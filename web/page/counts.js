// The numbers of an answer: while it grows, as the page counts them; at its end, as its result says.
//
// Does not know: the client, the chat. Invariant: what is shown at the end is the worker's own figures.

import { duration, showRate, showTiles } from "./view.js";

/** Counts of the answer that runs. */
export class Counts {
  constructor() {
    this.start = performance.now();
    this.first = 0;
    this.tokens = 0;
    this.drafted = 0;
    this.accepted = 0;
    this.passes = 0;
    showTiles({});
    showRate(0, 0);
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
export function showResult({ usage, speculation, timing_ms: ms }) {
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
export function summary({ usage, speculation, timing_ms: ms, finish_reason: reason, seed }) {
  const speed = ms.decode > 0 ? (1000 * usage.completion_tokens) / ms.decode : 0;
  const kept = usage.cached_tokens ?? usage.prompt_tokens_details?.cached_tokens;
  const parts = [
    `${usage.completion_tokens} tokens at ${speed.toFixed(1)} a second`,
    `${speculation.num_accepted} of ${speculation.num_drafted} drafts accepted`,
    `prompt of ${usage.prompt_tokens}${kept ? ` (${kept} kept)` : ""} read in ${duration(ms.prefill)}`,
  ];
  if (speculation.mode !== "greedy") parts.push(`drawn with seed ${seed}, ${speculation.mode}`);
  if (speculation.drafter !== "off") parts.push(scheduleText(speculation.schedule));
  if (speculation.fallbacks.rows_differ) parts.push("no drafts: this GPU's rows differ");
  if (reason === "length") parts.push("cut at the longest answer");
  if (reason === "cancelled") parts.push("stopped");
  return parts.join(", ");
}
