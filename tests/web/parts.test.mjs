// The parts of the web side that need no browser: hashes, manifests, strict JSON, streamed text, the pump's clock.
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { test } from "node:test";

import { dotKind, withDot } from "../../web/executor/dot.js";
import { readManifest } from "../../web/executor/bundle.js";
import { ArtifactError, ContractError, DeviceFault, asSpecdecError, errorFromJson, withTimeout } from "../../web/executor/faults.js";
import { hostRange, hostTensors, toNumbers } from "../../web/executor/layout.js";
import { sha256, sha256Plain } from "../../web/executor/sha256.js";
import { Fraction, parseStrict } from "../../web/executor/strict_json.js";
import { hasWasmFeature, importedMemory, requireWasmFeatures, withSharedMemory } from "../../web/executor/wasm_binary.js";
import { ByteMap, StreamDecoder } from "../../web/worker/byte_map.js";

test("the plain SHA-256 is the browser's", async () => {
  for (const size of [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 100003]) {
    const bytes = new Uint8Array(randomBytes(size + 3)).subarray(3); // a view that does not begin its buffer
    const expected = createHash("sha256").update(bytes).digest("hex");
    assert.equal(sha256Plain(bytes), expected);
    assert.equal(await sha256(bytes), expected);
  }
});

test("bytes in shared memory have the same SHA-256, several at a time", async () => {
  const all = [5, 100003, 64, 3000].map((size) => new Uint8Array(size).map((_, i) => (i * 31) ^ size));
  const shared = all.map((bytes) => {
    const view = new Uint8Array(new SharedArrayBuffer(bytes.length + 8), 8);
    view.set(bytes);
    return view;
  });
  const expected = all.map((bytes) => createHash("sha256").update(bytes).digest("hex"));
  assert.deepEqual(await Promise.all(shared.map((bytes) => sha256(bytes))), expected);
});

const SHA = "0".repeat(64);
const manifest = (change = {}) =>
  JSON.stringify({
    format: "specdec-bundle", version: 1, name: "m", license: "MIT", compiler: "0.1.0",
    draft_provenance: { status: "none", provenance: null, strata: null },
    files: [{ path: "a", bytes: 1, sha256: SHA }, { path: "b/c.bin", bytes: 2, sha256: SHA }], ...change,
  });

test("a manifest is read strictly", () => {
  assert.equal(readManifest(manifest()).files.length, 2);
  const file = (path) => ({ path, bytes: 1, sha256: SHA });
  const bad = [
    "", "[]", "{", manifest({ extra: 1 }), manifest({ version: 2 }), manifest({ format: "x" }), manifest({ name: 1 }),
    manifest({ files: {} }), manifest({ files: [file("../x")] }), manifest({ files: [file("/x")] }),
    manifest({ files: [file("a/../../x")] }), manifest({ files: [file("https://x/y")] }), manifest({ files: [file("a\\b")] }),
    manifest({ files: [file("b"), file("a")] }), manifest({ files: [file("a"), file("a")] }),
    manifest({ files: [{ ...file("a"), bytes: -1 }] }), manifest({ files: [{ ...file("a"), sha256: "x" }] }),
    manifest({ files: [{ ...file("a"), more: 1 }] }), manifest({ license: undefined }),
    manifest({ draft_provenance: undefined }), manifest({ draft_provenance: { status: "none", provenance: null } }),
    manifest({ draft_provenance: { status: "fine", provenance: null, strata: null } }),
    manifest({ draft_provenance: { status: "proven", provenance: "abc", strata: null } }),
  ];
  for (const text of bad) assert.throws(() => readManifest(text), ArtifactError, text);
});

test("strict JSON agrees with JSON.parse where that is strict, and sees what it hides", () => {
  const plain = (value) => {
    if (value instanceof Map) return Object.fromEntries([...value].map(([key, part]) => [key, plain(part)]));
    return Array.isArray(value) ? value.map(plain) : value;
  };
  const good = ['{"a":[1,-2,0,"x\\u00e9\\n",null,true,false,{}],"b":{"c":[]}}', " [ ] ", '"\\ud83d\\ude00"', "9007199254740993"];
  for (const text of good) assert.deepEqual(plain(parseStrict(text)), JSON.parse(text));
  for (const text of ["1.0", "1e3", "-0.5"]) assert.ok(parseStrict(text) instanceof Fraction);
  const bad = ['{"a":1,"a":2}', "[1,]", "{a:1}", "01", "NaN", "'x'", "[1] 2", '"\n"', "", "[", '{"a"}', "+1", '"\\x"', "[".repeat(9999)];
  for (const text of bad) assert.throws(() => parseStrict(text), SyntaxError, text);
});

test("errors keep their family across the worker's border", () => {
  const error = errorFromJson(new DeviceFault("lost", "GPU", "Load again").toJson());
  assert.ok(error instanceof DeviceFault);
  assert.equal(`${error}`, "lost (GPU). Load again");
  assert.ok(errorFromJson({ type: "Odd" }) instanceof ContractError);
  assert.ok(asSpecdecError(new TypeError("x"), "here") instanceof ContractError);
});

test("withTimeout never hangs", async () => {
  const never = new Promise(() => {});
  await assert.rejects(withTimeout(never, 10, () => new DeviceFault("late")), DeviceFault);
  assert.equal(await withTimeout(Promise.resolve(3), 1000, () => new DeviceFault("late")), 3);
});

test("the host touches only ranges of host tensors", () => {
  const target = { tensors: [{ name: "t", buffer: 0, offset: 0, dtype: "int32", shape: [2, 3] }, { name: "w", buffer: 0, offset: 0, dtype: "uint8", shape: [4] }] };
  const tensors = hostTensors(target);
  assert.equal(hostRange(tensors, "t", 2, 4).elements, 6);
  for (const [name, offset, count] of [["t", 3, 4], ["t", -1, 1], ["x", 0, 1], ["w", 0, 1]]) {
    assert.throws(() => hostRange(tensors, name, offset, count), ContractError);
  }
  assert.deepEqual(toNumbers(Float32Array.of(1.5, NaN, Infinity)), [1.5, null, null]);
});

test("a WASM module's memory limits are read from its bytes", () => {
  const name = (text) => [text.length, ...Buffer.from(text)];
  const module = (...memory) => {
    const imports = [2, ...name("env"), ...name("f"), 0, 0, ...name("env"), ...name("memory"), 2, ...memory];
    return Uint8Array.from([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, 1, 4, 1, 0x60, 0, 0, 2, imports.length, ...imports]);
  };
  assert.ok(WebAssembly.validate(module(1, 3, 0x80, 2)));
  const flagsAt = module(0, 17).length - 2;
  assert.deepEqual(importedMemory(module(1, 3, 0x80, 2)), { minPages: 3, maxPages: 256, shared: false, flagsAt });
  assert.deepEqual(importedMemory(module(0, 17)), { minPages: 17, maxPages: null, shared: false, flagsAt });
  const shared = withSharedMemory(module(1, 3, 0x80, 2));
  assert.ok(shared && WebAssembly.validate(shared));
  assert.equal(importedMemory(shared).shared, true);
  assert.equal(withSharedMemory(module(0, 17)), null);
  assert.throws(() => importedMemory(module(0, 17).subarray(0, 14)), ArtifactError);
  assert.throws(() => importedMemory(module(0, 17).subarray(0, 30)), ArtifactError);
  assert.ok(hasWasmFeature("simd128"));
  assert.throws(() => requireWasmFeatures(["teleport"]), ArtifactError);
});

test("bytes of a character that come in several tokens are held back", () => {
  const alphabet = { type: "ByteLevel" };
  const vocab = { "Ã": 0, "©": 1, "a": 2, "Ġb": 3, "ÿ": 4 }; // bytes C3, A9, 61, 20 62, FF
  const map = new ByteMap({ decoder: alphabet, model: { vocab }, added_tokens: [{ id: 5, content: "<s>" }, { id: 6, content: "two words" }] }, [5]);
  const stream = new StreamDecoder(map);
  assert.deepEqual([2, 0, 1, 5, 3, 6, 0].map((id) => stream.push(id)), ["a", "", "é", "", " b", "two words", ""]);
  assert.equal(stream.finish(), "\ufffd");
  const broken = new StreamDecoder(map);
  assert.equal([4, 0, 2, 99].map((id) => broken.push(id)).join(""), "\ufffd\ufffda");
  assert.throws(() => new ByteMap({ decoder: { type: "WordPiece" }, model: { vocab }, added_tokens: [] }, []), ArtifactError);
});

test("SentencePiece pieces: spaces and byte fallback", () => {
  const decoders = [
    { type: "Replace", pattern: { String: "▁" }, content: " " }, { type: "ByteFallback" }, { type: "Fuse" },
    { type: "Strip", content: " ", start: 1, stop: 0 },
  ];
  const vocab = { "▁Hello": 0, "<0xC3>": 1, "<0xA9>": 2, "▁": 3 };
  const map = new ByteMap({ decoder: { type: "Sequence", decoders }, model: { vocab }, added_tokens: [] }, []);
  const stream = new StreamDecoder(map);
  assert.equal([0, 1, 2, 0].map((id) => stream.push(id)).join("") + stream.finish(), "Helloé Hello");
});

test("the dot is in f32 where there is no packed one", () => {
  const has = new Set(["packed_4x8_integer_dot_product"]);
  assert.equal(dotKind("nvidia", has), "packed");
  assert.equal(dotKind("apple", has), "f32");
  assert.equal(dotKind("nvidia", new Set()), "f32");
  assert.equal(dotKind("nvidia", undefined), "f32");
  const code = "fn main() { let a = dot4I8Packed(x, y) + dot4I8Packed(y, x); }";
  assert.equal(withDot(code, "packed"), code);
  const changed = withDot(code, "f32");
  assert.equal(changed.split("dot_in_f32(").length, 4); // its definition and two calls
  assert.ok(!changed.includes("dot4I8Packed"));
  assert.equal(withDot("fn main() {}", "f32"), "fn main() {}");
});
