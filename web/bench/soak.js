// Short requests of every kind, for specdec-bench soak: whole, streamed, left early, abandoned, aborted on their way and in the queue,
// drawn, with stop strings, log-probabilities and sessions.
//
// Does not know: how memory is counted. Invariant: when `soak` resolves, every request it made is over, every session dropped.

/** @typedef {import("../page/client.js").Client} Client */
/** @typedef {(body: Record<string, any>) => Promise<any>} Create */

/** @param {unknown} error */
function expectAbort(error) {
  if (/** @type {Error} */ (error).name !== "AbortError") throw error;
}

const SESSIONS = ["a", "b"];

/** Each is a request or two. @type {((create: Client["chat"]["completions"]["create"], body: Record<string, any>) => Promise<any>)[]} */
const WAYS = [
  (create, body) => create(body),
  async (create, body) => {
    for await (const chunk of await create({ ...body, stream: true })) void chunk;
  },
  async (create, body) => {
    for await (const chunk of await create({ ...body, stream: true })) if (chunk.choices[0].delta.content) break;
  },
  (create, body) => create({ ...body, stream: true }),
  async (create, body) => {
    const abort = new AbortController();
    const onProgress = () => abort.abort();
    await create({ ...body, messages: [{ role: "user", content: "long ".repeat(40) }] }, { signal: abort.signal, onProgress }).catch(expectAbort);
  },
  async (create, body) => {
    const abort = new AbortController();
    const first = create(body);
    const second = create(body, { signal: abort.signal }).catch(expectAbort);
    abort.abort();
    await Promise.all([first, second]);
  },
  (create, body) => create({ ...body, stop: ["e"] }),
  (create, body) => create({ ...body, temperature: 0.9, top_p: 0.9, presence_penalty: 0.5 }),
  (create, body) => create({ ...body, logprobs: true, top_logprobs: 3 }),
  async (create, body) => {
    await create({ ...body, session: SESSIONS[0] });
    for await (const chunk of await create({ ...body, session: SESSIONS[1], stream: true })) if (chunk.choices[0].delta.content) break;
  },
];

/**
 * @param {Client} client @param {{from: number, count: number, drafter: string, tokens: number}} what numbers of the requests
 * @returns {Promise<void>}
 */
export async function soak(client, { from, count, drafter, tokens }) {
  /** @type {Client["chat"]["completions"]["create"]} */
  const create = (body, options) => client.chat.completions.create(body, options);
  for (let number = from; number < from + count; number++) {
    const messages = [{ role: "user", content: `Request ${number}` }];
    await WAYS[number % WAYS.length](create, { messages, drafter, max_tokens: tokens });
  }
  for (const session of SESSIONS) await client.dropSession(session); // in the queue: what was left behind is over before
}
