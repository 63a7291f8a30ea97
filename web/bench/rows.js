// The page of rows_worker.js: hands it the query, keeps its answer as window.benchResult. The work is a worker's: only
// there may a thread wait.

const worker = new Worker(new URL("./rows_worker.js", import.meta.url), { type: "module" });
/** @param {unknown} outcome */
function finish(outcome) {
  const out = document.getElementById("log");
  if (out) out.textContent = JSON.stringify(outcome, null, 2);
  /** @type {any} */ (window).benchResult = outcome;
}
worker.onmessage = ({ data }) => finish(data);
worker.onerror = (event) => finish({ error: event.message || "the worker did not start" });
worker.postMessage(location.search);
