// SHA-256 of a byte array: the browser's own where the page is a secure context, else this plain one.
//
// crypto.subtle is missing on a page from plain http on another host; such a page must still check its weights.
// Invariant: both give the same lower-case hexadecimal text.

const K = Uint32Array.from([
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
  0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
  0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
  0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
  0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
  0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
]);
const INITIAL = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

/** @param {Uint32Array} state @param {DataView} view @param {number} at @param {Uint32Array} w */
function compress(state, view, at, w) {
  for (let i = 0; i < 16; i++) w[i] = view.getUint32(at + 4 * i);
  for (let i = 16; i < 64; i++) {
    const x = w[i - 15], y = w[i - 2];
    const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  let a = state[0], b = state[1], c = state[2], d = state[3];
  let e = state[4], f = state[5], g = state[6], h = state[7];
  for (let i = 0; i < 64; i++) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g; g = f; f = e; e = (d + t1) | 0;
    d = c; c = b; b = a; a = (t1 + t2) | 0;
  }
  state[0] += a; state[1] += b; state[2] += c; state[3] += d;
  state[4] += e; state[5] += f; state[6] += g; state[7] += h;
}

/** @param {Uint8Array} bytes @returns {string} */
export function sha256Plain(bytes) {
  const state = Uint32Array.from(INITIAL);
  const w = new Uint32Array(64);
  const whole = bytes.byteLength - (bytes.byteLength % 64);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 0; at < whole; at += 64) compress(state, view, at, w);
  const rest = bytes.byteLength - whole;
  const tail = new DataView(new ArrayBuffer(rest < 56 ? 64 : 128)); // the rest, 0x80, zeros, length in bits
  for (let i = 0; i < rest; i++) tail.setUint8(i, bytes[whole + i]);
  tail.setUint8(rest, 0x80);
  tail.setBigUint64(tail.byteLength - 8, BigInt(bytes.byteLength) * 8n);
  for (let at = 0; at < tail.byteLength; at += 64) compress(state, tail, at, w);
  return [...state].map((word) => word.toString(16).padStart(8, "0")).join("");
}

/**
 * crypto.subtle refuses shared memory: of such bytes it gets a copy, which is given back at once rather than when garbage is next collected.
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Promise<string>}
 */
export async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) return sha256Plain(bytes);
  const isPlain = bytes.buffer instanceof ArrayBuffer;
  const plain = isPlain ? bytes : new Uint8Array(bytes);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", plain));
  if (!isPlain) /** @type {any} */ (plain.buffer).transfer?.(0);
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
