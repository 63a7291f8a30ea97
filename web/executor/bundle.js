// A bundle behind a URL: its strict manifest, and downloads that count bytes and check every file's SHA-256.
//
// Does not know: what the files mean, where the bytes go (the caller gives the memory).
// Invariants: no byte of a file is used before its hash was checked by `fetchInto`; a download that stalls
// ends in an error, never in a hang; paths cannot leave the bundle.

import { ArtifactError } from "./faults.js";
import { sha256 } from "./sha256.js";

/** @typedef {{path: string, bytes: number, sha256: string}} ManifestFile */
/** @typedef {{status: string, provenance: string | null, strata: string | null}} DraftProvenance */
/** @typedef {{name: string, license: string, compiler: string, draft_provenance: DraftProvenance, files: ManifestFile[]}} Manifest */

const STATUSES = ["none", "champion", "proven", "untrained", "unproven"];
const SHA256 = /^[0-9a-f]{64}$/;
const MANIFEST_KEYS = ["compiler", "draft_provenance", "files", "format", "license", "name", "version"];
const FILE_KEYS = ["bytes", "path", "sha256"];
const PATH = /^(?!.*\.\.)[A-Za-z0-9_-][A-Za-z0-9._-]*(\/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$/;
const STALL_MS = 30000;

/** @param {string} message @param {string} where @returns {never} */
function refuse(message, where) {
  throw new ArtifactError(message, where, "Build the bundle again, or copy it again");
}

/** @param {unknown} value @param {string[]} keys @param {string} where @returns {Record<string, any>} */
function exactKeys(value, keys, where) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) refuse("not an object", where);
  const found = Object.keys(value);
  for (const key of found) if (!keys.includes(key)) refuse(`unknown key "${key}"`, where);
  for (const key of keys) if (!found.includes(key)) refuse(`missing key "${key}"`, where);
  return value;
}

/** @param {unknown} value @param {string} where @returns {ManifestFile} */
function readFileEntry(value, where) {
  const file = exactKeys(value, FILE_KEYS, where);
  if (typeof file.path !== "string" || !PATH.test(file.path)) refuse(`bad path ${JSON.stringify(file.path)}`, where);
  if (!Number.isSafeInteger(file.bytes) || file.bytes < 0) refuse(`bad byte count of ${file.path}`, where);
  if (typeof file.sha256 !== "string" || !SHA256.test(file.sha256)) refuse(`bad sha256 of ${file.path}`, where);
  return { path: file.path, bytes: file.bytes, sha256: file.sha256 };
}

/** @param {unknown} value @param {string} where @returns {DraftProvenance} */
function readProvenance(value, where) {
  const { status, provenance, strata } = exactKeys(value, ["provenance", "status", "strata"], where);
  if (!STATUSES.includes(status)) refuse(`bad status ${JSON.stringify(status)}`, where);
  for (const hash of [provenance, strata]) {
    if (hash !== null && !(typeof hash === "string" && SHA256.test(hash))) refuse("bad sha256", where);
  }
  return { status, provenance, strata };
}

/**
 * The manifest of a text, or an ArtifactError that names the first thing wrong.
 * @param {string} text
 * @returns {Manifest}
 */
export function readManifest(text) {
  const where = "manifest.json";
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    refuse("not JSON", where);
  }
  const top = exactKeys(value, MANIFEST_KEYS, where);
  if (top.format !== "specdec-bundle") refuse(`format is ${JSON.stringify(top.format)}, not "specdec-bundle"`, where);
  if (top.version !== 1) refuse(`version ${JSON.stringify(top.version)} is not one that this page reads (1)`, where);
  for (const key of ["name", "license", "compiler"]) {
    if (typeof top[key] !== "string") refuse(`"${key}" is not text`, where);
  }
  if (!Array.isArray(top.files)) refuse(`"files" is not a list`, where);
  const files = top.files.map((/** @type {unknown} */ file, /** @type {number} */ i) => readFileEntry(file, `${where} files[${i}]`));
  for (let i = 1; i < files.length; i++) {
    if (files[i - 1].path >= files[i].path) refuse(`files are not sorted by path at ${files[i].path}`, where);
  }
  const about = readProvenance(top.draft_provenance, `${where} draft_provenance`);
  return { name: top.name, license: top.license, compiler: top.compiler, draft_provenance: about, files };
}

/**
 * Start a download; a server that says nothing within the stall limit is an error.
 * @param {string} url @param {AbortController} abort @param {RequestCache} cache
 * @returns {Promise<Response>}
 */
async function request(url, abort, cache) {
  const timer = setTimeout(() => abort.abort(), STALL_MS);
  try {
    const response = await fetch(url, { signal: abort.signal, cache });
    if (!response.ok) {
      throw new ArtifactError(`the server answered ${response.status}`, url, "Check the bundle's address");
    }
    return response;
  } catch (error) {
    if (error instanceof ArtifactError) throw error;
    const why = abort.signal.aborted ? `no answer within ${STALL_MS / 1000} s` : "the download failed";
    throw new ArtifactError(why, url, "Check the address and the network, then load again");
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Read a response's chunks in turn, giving up when none comes within the stall limit.
 * @param {Response} response @param {string} url @param {AbortController} abort
 * @param {(chunk: Uint8Array) => void} onChunk
 */
async function readChunks(response, url, abort, onChunk) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  for (;;) {
    const timer = setTimeout(() => abort.abort(), STALL_MS);
    try {
      const { done, value } = await reader.read();
      if (done) return;
      onChunk(value);
    } catch (error) {
      if (error instanceof ArtifactError) throw error;
      const why = abort.signal.aborted ? `the download stalled for ${STALL_MS / 1000} s` : "the download broke off";
      throw new ArtifactError(why, url, "Check the network, then load again");
    } finally {
      clearTimeout(timer);
    }
  }
}

export class Bundle {
  /** @param {string} url ends with "/" @param {Manifest} manifest */
  constructor(url, manifest) {
    this.url = url;
    this.manifest = manifest;
    this.files = new Map(manifest.files.map((file) => [file.path, file]));
  }

  /**
   * @param {string} url the folder of the bundle
   * @returns {Promise<Bundle>}
   */
  static async open(url) {
    const folder = url.endsWith("/") ? url : `${url}/`;
    const address = `${folder}manifest.json`;
    const abort = new AbortController();
    const response = await request(address, abort, "no-store");
    /** @type {Uint8Array[]} */
    const chunks = [];
    await readChunks(response, address, abort, (chunk) => chunks.push(chunk));
    return new Bundle(folder, readManifest(await new Blob(/** @type {BlobPart[]} */ (chunks)).text()));
  }

  /** @param {string} path @returns {ManifestFile} */
  file(path) {
    const file = this.files.get(path);
    if (!file) throw new ArtifactError(`the manifest does not list ${path}`, "manifest.json", "Build the bundle again");
    return file;
  }

  /**
   * Download one file into memory of exactly its size and check its hash.
   * A rebuilt bundle keeps its file names, and a server's dates are whole seconds: a stored copy that the server
   * calls current may still be the old one, so a file that is wrong is fetched once more past every cache.
   * @param {string} path
   * @param {Uint8Array<ArrayBuffer>} into [file.bytes]
   * @param {(bytes: number) => void} onBytes called with the bytes that just came
   */
  async fetchInto(path, into, onBytes) {
    const file = this.file(path);
    const wrong = await this.attempt(file, into, onBytes, "no-cache");
    const stillWrong = wrong && (await this.attempt(file, into, onBytes, "reload"));
    if (stillWrong) refuse(stillWrong, path);
  }

  /**
   * @param {ManifestFile} file @param {Uint8Array<ArrayBuffer>} into @param {(bytes: number) => void} onBytes
   * @param {RequestCache} cache
   * @returns {Promise<string>} what is wrong with the file; "" when it is right
   */
  async attempt(file, into, onBytes, cache) {
    const { path, bytes } = file;
    const address = this.url + path;
    const abort = new AbortController();
    const response = await request(address, abort, cache);
    let at = 0;
    await readChunks(response, address, abort, (chunk) => {
      if (at + chunk.byteLength <= bytes) {
        into.set(chunk, at);
        onBytes(chunk.byteLength);
      }
      at += chunk.byteLength;
    });
    const found = at === bytes ? await sha256(into) : "";
    if (found === file.sha256) return "";
    onBytes(-Math.min(at, bytes));
    if (at !== bytes) return `${path} has ${at} bytes, the manifest says ${bytes}`;
    return `${path} is damaged: sha256 ${found}, the manifest says ${file.sha256}`;
  }

  /**
   * @param {string} path @param {(bytes: number) => void} [onBytes]
   * @returns {Promise<Uint8Array<ArrayBuffer>>}
   */
  async bytes(path, onBytes = () => {}) {
    const into = new Uint8Array(this.file(path).bytes);
    await this.fetchInto(path, into, onBytes);
    return into;
  }

  /** @param {string} path @param {(bytes: number) => void} [onBytes] @returns {Promise<string>} */
  async text(path, onBytes) {
    const bytes = await this.bytes(path, onBytes);
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      return refuse(`${path} is not UTF-8 text`, path);
    }
  }
}
