// Grammars in the browser: XGrammar (WASM) behind the matchers that the pump asks, and the masks of the last walk.
//
// Does not know: models, devices, schemas (Python makes EBNF of all that a request may ask). Twin of specdec_runtime's
// decode/grammar.py and masks.py and of specdec_tools/grammar.py: the same rule, the same version of the engine, the same
// masks. Invariants: the engine is loaded by the first grammar, not before; a grammar that it cannot read ends its instance
// (its errors are aborts, and each leaves its share of a small stack taken: some 40 of them break it), so the next grammar gets
// a new one, of the same code: the old one is garbage; masks never enter Python.

import { ArtifactError, ContractError, DeviceFault, RequestError } from "../executor/faults.js";
import { vendored } from "./text.js";

/** @typedef {{form: string, text: string, stop_ids: number[], vocab_size: number, row_words: number}} Constrain */
/** @typedef {{accepted: number[], drafted: number[], budget: number}} Walk */
/** @typedef {{ids: number[], forced: number[]}} Walked */
/**
 * Follows one answer through a grammar.
 * @typedef {{
 *   stopIds: Set<number>, accept: (id: number) => boolean, mask: () => Promise<Uint32Array>, rollback: (count: number) => void,
 *   close: () => void
 * }} Matcher
 */

const LIBRARY = "xgrammar/index.js";

/** @param {Uint32Array} words @param {number} id */
export function allows(words, id) {
  return id >= 0 && id < 32 * words.length && ((words[id >>> 5] >>> (id & 31)) & 1) === 1;
}

/** @param {Uint32Array} words @returns {number | null} the id, where there is exactly one */
export function onlyId(words) {
  let found = -1;
  for (let i = 0; i < words.length; i++) {
    if (words[i] === 0) continue;
    if (found >= 0 || (words[i] & (words[i] - 1)) !== 0) return null;
    found = i;
  }
  return found < 0 ? null : 32 * found + 31 - Math.clz32(words[found]);
}

/** @param {Uint32Array} words */
const isEmpty = (words) => words.every((word) => word === 0);

/**
 * Commit, then walk the drafts and come back: the drafts to verify, and the masks of 1 + that many rows.
 * @param {Matcher} matcher @param {Walk} asked @returns {Promise<{walked: Walked, rows: Uint32Array[]}>}
 */
export async function walk(matcher, { accepted, drafted, budget }) {
  for (const id of accepted) {
    if (matcher.accept(id)) continue;
    throw new DeviceFault(`the device chose token ${id}, which the grammar forbids`, "sampling.mask", "Use another backend");
  }
  const rows = [await matcher.mask()];
  if (isEmpty(rows[0])) throw new RequestError("no token of this model goes on from here", "grammar", "Change the grammar");
  /** @type {number[]} */
  const ids = [];
  /** @type {number[]} */
  const forced = [];
  let guesses = drafted.slice(0, budget);
  let numWalked = 0;
  while (ids.length < budget) {
    const last = rows[rows.length - 1];
    const only = onlyId(last);
    /** @type {number | undefined} */
    const id = only !== null ? only : guesses[ids.length];
    if (id === undefined || !allows(last, id)) break;
    if (guesses[ids.length] !== id) guesses = guesses.slice(0, ids.length); // guessed after another id
    const goesOn = !matcher.stopIds.has(id) && matcher.accept(id);
    if (goesOn) numWalked += 1;
    const row = goesOn ? await matcher.mask() : new Uint32Array(last.length).fill(0xffffffff); // of that row nothing is used
    if (isEmpty(row)) break; // a dead end: for the next walk to tell, if the target goes there
    if (id === only) forced.push(ids.length);
    ids.push(id);
    rows.push(row);
    if (!goesOn) break;
  }
  matcher.rollback(numWalked);
  return { walked: { ids, forced }, rows };
}

/** The pump's half of a grammar: one request's matcher, and the masks of its last walk. */
export class Masks {
  /** @param {(asked: Constrain) => Promise<Matcher>} open */
  constructor(open) {
    this.open = open;
    /** @type {Matcher | null} */
    this.matcher = null;
    this.rowWords = 0;
    /** @type {Uint32Array[]} */
    this.rows = [];
  }

  /** @param {Constrain} asked @returns {Promise<null>} */
  async constrain(asked) {
    this.close();
    this.matcher = await this.open(asked);
    this.rowWords = asked.row_words;
    return null;
  }

  /** @param {Walk} asked @returns {Promise<Walked>} */
  async walk(asked) {
    if (!this.matcher) throw new ContractError("a walk before its grammar", "grammar.js");
    const { walked, rows } = await walk(this.matcher, asked);
    this.rows = rows;
    return walked;
  }

  /**
   * The submit with its masks among the writes.
   * @param {import("../executor/types.js").Submit} batch @returns {import("../executor/types.js").Submit}
   */
  into(batch) {
    const count = batch.masks ?? 0;
    if (count === 0) return batch;
    if (count > this.rows.length) throw new ContractError(`${count} masks of ${this.rows.length}`, "Submit.masks");
    const words = new Uint32Array(count * this.rowWords);
    this.rows.slice(0, count).forEach((row, i) => words.set(row, i * this.rowWords));
    return { ...batch, writes: [...batch.writes, ["sampling.mask", 0, words]] };
  }

  close() {
    this.matcher?.close();
    this.matcher = null;
    this.rows = [];
  }
}

/** @typedef {(exports: Record<string, any>) => void} Maker */

/**
 * The function that makes an instance of XGrammar with all of its state. Its file hands that to an AMD loader's `define` where
 * there is one; importing the file again for every instance would keep its text (1.1 MB) as often.
 * @returns {Promise<Maker>}
 */
async function xgrammarMaker() {
  /** @type {Maker[]} */
  const makers = [];
  const define = (/** @type {string[]} */ _names, /** @type {Maker} */ maker) => void makers.push(maker);
  Reflect.set(globalThis, "define", Object.assign(define, { amd: {} }));
  try {
    await vendored(LIBRARY);
  } finally {
    Reflect.deleteProperty(globalThis, "define");
  }
  if (makers.length === 0) throw new ArtifactError("it defines nothing", LIBRARY, "Fill web/vendor with python -m specdec_tools.site");
  return makers[0];
}

/** XGrammar, its code loaded once; what it writes to the console before an abort is kept, for the error. */
class Library {
  constructor() {
    /** @type {Promise<Maker> | null} */
    this.maker = null;
    /** @type {Promise<any> | null} */
    this.module = null;
    /** @type {string[]} */
    this.said = [];
  }

  /** @returns {Promise<any>} */
  get() {
    this.maker ??= xgrammarMaker();
    this.module ??= this.maker.then((make) => {
      const made = {};
      make(made);
      return made;
    });
    return this.module;
  }

  /**
   * Work that starts the module: it binds the console's functions then.
   * @template T @param {() => Promise<T>} work @returns {Promise<T>}
   */
  async listening(work) {
    const before = console.error;
    console.error = (...words) => void this.said.push(words.join(" "));
    try {
      return await work();
    } finally {
      console.error = before;
    }
  }

  /** It has aborted: nothing of it is used again. @returns {string} why */
  broken() {
    this.module = null;
    const line = this.said.find((text) => text.includes("[FATAL]")) ?? "it is not understood";
    this.said = [];
    return line.slice(line.lastIndexOf(": ") + 1).trim();
  }
}

const library = new Library();

/** Matchers of one bundle. */
export class Matchers {
  /** @param {import("./byte_map.js").ByteMap} map */
  constructor(map) {
    this.map = map;
    /** @type {{key: string, module: any, compiler: any} | null} */
    this.made = null;
  }

  /** @param {Constrain} asked @returns {Promise<any>} */
  async compiler({ vocab_size, stop_ids }) {
    const module = await library.get();
    const key = `${vocab_size} ${stop_ids}`;
    if (this.made?.key === key && this.made.module === module) return this.made.compiler;
    const vocabulary = Array.from({ length: vocab_size }, (_, id) => this.map.bytes(id));
    const info = await library.listening(() => module.TokenizerInfo.createTokenizerInfo(vocabulary, "raw", false, vocab_size, stop_ids));
    const compiler = await module.GrammarCompiler.createGrammarCompiler(info, true);
    this.made = { key, module, compiler };
    return compiler;
  }

  /** @param {Constrain} asked @returns {Promise<Matcher>} */
  async open(asked) {
    const compiler = await this.compiler(asked);
    const { GrammarMatcher } = await library.get();
    let compiled;
    try {
      compiled = await compiler.compileGrammar(asked.text, "root");
    } catch (error) {
      const why = library.broken();
      this.made = null;
      throw new RequestError(`the grammar cannot be read: ${why}`, "grammar", "Mend it");
    }
    const matcher = await GrammarMatcher.createGrammarMatcher(compiled, asked.stop_ids, false);
    return {
      stopIds: new Set(asked.stop_ids),
      accept: (id) => matcher.acceptToken(id),
      mask: async () => new Uint32Array((await matcher.getNextTokenBitmask()).buffer),
      rollback: (count) => count > 0 && matcher.rollBack(count),
      close: () => {
        matcher.dispose();
        compiled.dispose();
      },
    };
  }
}
