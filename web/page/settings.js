// The settings beside the chat, as fields of a request.
//
// Does not know: the client, what the values mean. Invariant: a value that is not set is no field; whether a value can be served is for
// the decode core, whose refusal the page shows.

import { element } from "./view.js";

/** @param {string} id @returns {HTMLInputElement} */
const input = (id) => element(id);

/** @param {string} id @returns {number} what the field holds, for the core to judge: an empty one is no number */
const number = (id) => (input(id).value.trim() === "" ? NaN : Number(input(id).value));

/** How tokens are drawn; at temperature 0 nothing is. @returns {Record<string, any>} */
function drawing() {
  const temperature = number("temperature");
  if (temperature === 0) return {};
  const seed = input("seed").value.trim();
  return { temperature, top_p: number("top-p"), mode: input("mode").value, ...(seed !== "" && { seed: Number(seed) }) };
}

/** @returns {Record<string, any>} fields that chat completions and `generate` both take */
export function settings() {
  const stop = input("stop-text").value.split("\n").filter((line) => line !== "");
  return {
    max_tokens: number("max-tokens"),
    drafter: input("drafter").value,
    k: number("k"),
    schedule: input("schedule").value,
    ...drawing(),
    ...(stop.length > 0 && { stop }),
  };
}

/** What cannot be chosen with this bundle is greyed out. @param {any} loaded */
export function offerSettings({ model, schedules }) {
  const hasDraft = model.roles.includes("draft");
  for (const option of element("drafter").querySelectorAll("option")) {
    option.disabled = !hasDraft && option.value === "model"; // a chain is lookups alone then
  }
  for (const option of element("schedule").querySelectorAll("option")) {
    option.disabled = !["auto", ...schedules].includes(option.value);
  }
}

/** Top-p, seed and mode are of use above temperature 0 only. */
export function watchSettings() {
  const update = () => {
    for (const id of ["top-p", "seed", "mode"]) input(id).disabled = number("temperature") === 0;
  };
  input("temperature").addEventListener("input", update);
  update();
}
