// What every bench page ends with: its outcome on the screen, as window.benchResult, and at POST /result where a runner listens.

/** @param {string} text */
export function log(text) {
  const out = document.getElementById("log");
  if (out) out.textContent += `\n${text}`;
}

/**
 * Runs the page's work; what it throws becomes an outcome too.
 * @param {(query: URLSearchParams) => Promise<unknown>} run
 * @param {(error: unknown) => object} [failed]
 */
export async function report(run, failed = plainly) {
  let outcome;
  try {
    outcome = await run(new URLSearchParams(location.search));
  } catch (error) {
    outcome = failed(error);
  }
  log(JSON.stringify(outcome, null, 2));
  /** @type {any} */ (window).benchResult = outcome;
  // where no runner listens, the page is watched through window.benchResult
  await fetch("/result", { method: "POST", body: JSON.stringify(outcome) }).catch(() => {});
}

/** @param {unknown} error */
function plainly(error) {
  return { error: error instanceof Error ? `${error.message}\n${error.stack}` : String(error) };
}
