// From token ids to the bytes they stand for, read from tokenizer.json; and bytes to text as they arrive.
//
// Why not the library's decode: it knows no streams. A character may be cut in two by a token's end; its first bytes
// are held back until the rest comes. Twin of specdec_tools/byte_map.py: the same tables; and of StreamDecoder in
// specdec_runtime/decode/text.py, which makes the text where stop strings are asked for: the same text.

import { ArtifactError } from "../executor/faults.js";

/** @typedef {(piece: string) => Uint8Array} PieceBytes */

const utf8 = new TextEncoder();

/** GPT-2's map from a byte to a printable character, turned round. @returns {Map<string, number>} */
function byteLevelAlphabet() {
  const alphabet = new Map();
  let spare = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    alphabet.set(String.fromCodePoint(printable ? byte : spare++), byte);
  }
  return alphabet;
}

/** @returns {PieceBytes} a piece that holds any other character stands for its own UTF-8 */
function byteLevel() {
  const alphabet = byteLevelAlphabet();
  return (piece) => {
    const bytes = [...piece].map((character) => alphabet.get(character));
    return bytes.includes(undefined) ? utf8.encode(piece) : Uint8Array.from(/** @type {number[]} */ (bytes));
  };
}

/** @param {any[]} steps of a Sequence decoder in the SentencePiece style @returns {PieceBytes | null} */
function sentencePiece(steps) {
  const types = steps.map((step) => step.type);
  const replace = steps.find((step) => step.type === "Replace");
  if (!types.includes("ByteFallback") || !types.includes("Fuse") || !replace?.pattern?.String) return null;
  const known = new Set(["Replace", "ByteFallback", "Fuse", "Strip"]);
  if (types.some((type) => !known.has(type))) return null;
  return (piece) => {
    const byte = /^<0x([0-9A-F]{2})>$/.exec(piece);
    if (byte) return Uint8Array.of(parseInt(byte[1], 16));
    return utf8.encode(piece.replaceAll(replace.pattern.String, replace.content));
  };
}

/** @param {any} decoder @returns {{pieceBytes: PieceBytes, stripsFirstSpace: boolean}} */
function readDecoder(decoder) {
  if (decoder?.type === "ByteLevel") return { pieceBytes: byteLevel(), stripsFirstSpace: false };
  const steps = decoder?.type === "Sequence" ? decoder.decoders : [];
  const pieceBytes = sentencePiece(steps);
  if (pieceBytes) return { pieceBytes, stripsFirstSpace: steps.some((/** @type {any} */ step) => step.type === "Strip") };
  throw new ArtifactError(`unknown decoder ${decoder?.type}`, "tokenizer.json", "Use a newer page for this bundle");
}

export class ByteMap {
  /** @param {any} tokenizer the parsed tokenizer.json @param {Iterable<number>} hidden ids that are never text */
  constructor(tokenizer, hidden) {
    const { pieceBytes, stripsFirstSpace } = readDecoder(tokenizer.decoder);
    this.stripsFirstSpace = stripsFirstSpace;
    /** @type {Map<number, string>} */
    this.pieces = new Map();
    for (const [piece, id] of Object.entries(tokenizer.model.vocab)) this.pieces.set(Number(id), piece);
    /** @type {Map<number, string>} */
    const added = new Map(tokenizer.added_tokens.map((/** @type {any} */ token) => [token.id, token.content]));
    for (const [id, content] of added) this.pieces.set(id, content);
    this.pieceBytes = pieceBytes;
    this.hidden = new Set(hidden);
  }

  /** @param {number} id @returns {Uint8Array} the bytes shown for a token; none for a hidden or unknown id */
  bytes(id) {
    const piece = this.hidden.has(id) ? undefined : this.pieces.get(id);
    return piece === undefined ? new Uint8Array() : this.pieceBytes(piece);
  }

  /** @returns {string} what each token shows, for Python (ByteTable in specdec_runtime/decode/text.py): one string an id, a character a byte */
  table() {
    const count = [...this.pieces.keys()].reduce((most, id) => Math.max(most, id + 1), 0);
    const bytes = Array.from({ length: count }, (_, id) => String.fromCharCode(...this.bytes(id)));
    return JSON.stringify({ strips_first_space: this.stripsFirstSpace, bytes });
  }
}

/** Text from ids, given as they are committed; an unfinished character waits for its other bytes. */
export class StreamDecoder {
  /** @param {ByteMap} map */
  constructor(map) {
    this.map = map;
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    this.atStart = map.stripsFirstSpace;
  }

  /** @param {number} id @returns {string} the text that this token finished */
  push(id) {
    const text = this.decoder.decode(this.map.bytes(id), { stream: true });
    if (!this.atStart || text === "") return text;
    this.atStart = false;
    return text.startsWith(" ") ? text.slice(1) : text;
  }

  /** @returns {string} what is left at the end: bytes that never became a character show as U+FFFD */
  finish() {
    return this.decoder.decode();
  }
}
