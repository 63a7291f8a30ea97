// JSON that forgives nothing: the reader under plan.js, with the verdicts of codec.py in Python.
//
// JSON.parse drops repeated keys, and cannot tell 1.0 from 1; a plan may hold neither. Objects come as Maps (file
// order kept, no prototype), a number with a fraction or an exponent as a `Fraction`. Throws SyntaxError.

/** A number that was not written as an integer. */
export class Fraction {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }
  toJSON() {
    return Number(this.text);
  }
}

/** @typedef {null | boolean | number | string | Fraction | Json[] | Map<string, Json>} Json */

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const MAX_DEPTH = 200;

/** @type {[string, Json][]} */
const WORDS = [["true", true], ["false", false], ["null", null]];

class Parser {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  /** @param {string} what @returns {never} */
  fail(what) {
    throw new SyntaxError(`${what} at character ${this.at}`);
  }

  /** @param {RegExp} pattern a sticky one @returns {RegExpExecArray | null} */
  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at += found[0].length;
    return found;
  }

  /** @param {string} mark @returns {boolean} whether the next sign is this one, stepping over it */
  take(mark) {
    this.match(SPACE);
    if (this.text[this.at] !== mark) return false;
    this.at += 1;
    return true;
  }

  /** @param {string} mark */
  need(mark) {
    if (!this.take(mark)) this.fail(`expected ${mark}`);
  }

  /** @returns {string} */
  string() {
    this.match(SPACE);
    const found = this.match(STRING);
    return found ? JSON.parse(found[0]) : this.fail("expected a string");
  }

  /** @param {number} depth @returns {Json} */
  value(depth) {
    if (depth > MAX_DEPTH) this.fail("nested too deeply");
    this.match(SPACE);
    const sign = this.text[this.at];
    if (sign === "{") return this.object(depth);
    if (sign === "[") return this.list(depth);
    if (sign === '"') return this.string();
    for (const [word, value] of WORDS) {
      if (!this.text.startsWith(word, this.at)) continue;
      this.at += word.length;
      return value;
    }
    const number = this.match(NUMBER);
    if (!number) return this.fail("expected a value");
    return number[1] || number[2] ? new Fraction(number[0]) : Number(number[0]);
  }

  /** @param {number} depth @returns {Map<string, Json>} */
  object(depth) {
    /** @type {Map<string, Json>} */
    const found = new Map();
    this.need("{");
    if (this.take("}")) return found;
    do {
      const key = this.string();
      if (found.has(key)) this.fail(`a key appears twice in one object: ${JSON.stringify(key)}`);
      this.need(":");
      found.set(key, this.value(depth + 1));
    } while (this.take(","));
    this.need("}");
    return found;
  }

  /** @param {number} depth @returns {Json[]} */
  list(depth) {
    /** @type {Json[]} */
    const found = [];
    this.need("[");
    if (this.take("]")) return found;
    do found.push(this.value(depth + 1));
    while (this.take(","));
    this.need("]");
    return found;
  }
}

/** @param {string} text @returns {Json} */
export function parseStrict(text) {
  const parser = new Parser(text);
  const value = parser.value(0);
  parser.match(SPACE);
  if (parser.at !== text.length) parser.fail("text after the end");
  return value;
}
