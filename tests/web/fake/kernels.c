// A stand-in for a language model that has every seam of a real one: tokens in, KV in pages, argmax and logits out.
// The next id depends on a hash of all tokens before it, kept position by position in the KV, so that a wrong page, a
// rollback off by one or shifted rows change the text. Integers and exact floats only: every backend gives equal bits.
// The twins are kernels.wgsl and fake_bundle.py.

typedef unsigned int u32;
typedef int i32;

enum { VOCAB = 300, PADDED = 320, PAGE = 16, WEIGHTS = 4096, EOS = 299 };

static u32 mix(u32 x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

static i32 next_id(u32 h, i32 token) {
  if (token == 0xc3) return 0xa9;  // the bytes of a character come in several tokens
  if (token == 0xf0) return 0x9f;
  if (token == 0x9f) return 0x98;
  if (token == 0x98) return 0x80 + (i32)(h & 63u);
  u32 r = (h >> 7) & 63u;
  if (r == 0u) return 0xc3;
  if (r == 1u) return 0xf0;
  if (r == 2u && ((h >> 13) & 3u) == 0u) return EOS;
  if (r < 14u) return 32;
  return 97 + (i32)((h >> 9) % 26u);
}

static u32 hash_at(const i32* table, const u32* kv, i32 position) {
  if (position < 0) return 0x9e3779b9u;
  return kv[table[position / PAGE] * PAGE + position % PAGE];
}

static u32 append(const i32* tokens, const i32* table, const u32* weights, u32* kv, i32 position) {
  i32 token = tokens[position];
  u32 h = mix(hash_at(table, kv, position - 1) + weights[(token * 13) % WEIGHTS] + (u32)token);
  kv[table[position / PAGE] * PAGE + position % PAGE] = h;
  return h;
}

static float logit(u32 h, i32 v) { return (float)(mix(h ^ (u32)v) >> 16) / 65536.0f; }

i32 prefill(const i32* args, const i32* tokens, const i32* table, const u32* weights, u32* kv) {
  for (i32 row = 0; row < args[1]; row++) append(tokens, table, weights, kv, args[0] + row);
  return 0;
}

i32 verify(const i32* args, const i32* tokens, const i32* table, const u32* weights, u32* kv, i32* out, float* logits) {
  for (i32 row = 0; row < args[1]; row++) {
    u32 h = append(tokens, table, weights, kv, args[0] + row);
    i32 id = next_id(h, tokens[args[0] + row]);
    for (i32 v = 0; v < VOCAB; v++) logits[row * PADDED + v] = logit(h, v);
    logits[row * PADDED + id] = 4.0f;
    out[2 * (args[3] + row)] = id;
    out[2 * (args[3] + row) + 1] = 1;
  }
  return 0;
}

i32 step(const i32* args, const i32* tokens, const i32* table, const u32* weights, u32* kv, i32* out) {
  for (i32 row = 0; row < args[1]; row++) {
    u32 h = append(tokens, table, weights, kv, args[0] + row);
    out[2 * (args[3] + row)] = ((h >> 20) & 3u) == 0u ? 'x' : next_id(h, tokens[args[0] + row]);  // wrong about one in four
    out[2 * (args[3] + row) + 1] = 1;
  }
  return 0;
}

i32 measure(const i32* args, const i32* table, const u32* kv, float* stats) {
  for (i32 row = 0; row < args[1]; row++) {
    u32 h = hash_at(table, kv, args[0] + row);
    float doubt = ((h >> 20) & 3u) == 0u ? 2.0f : (float)(((h >> 22) & 7u) + 1u) / 8.0f;  // more where it is wrong
    stats[2 * (args[3] + row)] = -doubt;
    stats[2 * (args[3] + row) + 1] = 2.0f * doubt;
  }
  return 0;
}

i32 feedback(i32* args, i32* tokens, const i32* out) {
  if (args[2] == 0 || args[1] < 1) return 0;
  tokens[args[0] + args[1]] = out[2 * (args[3] + args[1] - 1)];
  args[0] += args[1];
  args[3] += args[1];
  args[1] = 1;
  return 0;
}

i32 accept(i32* args, const i32* out, i32* tokens, i32* draft) {  // no row of this model is ever unusable
  const i32* said = out + 2 * args[3];
  i32 row = 0;
  while (row < args[1] - 1 && said[2 * row] == tokens[args[0] + row + 1]) row++;
  tokens[args[0] + row + 1] = said[2 * row];
  draft[0] = args[0] + row;
  draft[1] = 2;
  args[0] += row + 1;
  args[3] += args[1];
  return 0;
}

i32 score(const i32* args, const float* logits, const i32* ids, float* scores) {
  for (i32 row = 0; row < args[1]; row++) {
    const float* line = logits + row * PADDED;
    float first = line[0], second = -1.0f;
    for (i32 v = 1; v < VOCAB; v++) {
      float x = line[v];
      if (x > first) { second = first; first = x; } else if (x > second) second = x;
    }
    scores[3 * row] = first - second;
    scores[3 * row + 1] = line[ids[row]] - first;  // no logarithm: not a probability, but exact everywhere
    scores[3 * row + 2] = first;
  }
  return 0;
}

i32 logprobs(const i32* args, const float* logits, const i32* out, float* top) {
  for (i32 row = 0; row < args[1]; row++) {
    const float* line = logits + row * PADDED;
    i32 at = args[3] + row - (args[2] == 1);  // a pass that feeds back has moved on
    i32 taken[5];
    for (i32 j = 0; j < 5; j++) {
      i32 best = -1;
      for (i32 v = 0; v < VOCAB; v++) {
        i32 is_taken = 0;
        for (i32 i = 0; i < j; i++) is_taken |= taken[i] == v;
        if (!is_taken && (best < 0 || line[v] > line[best])) best = v;
      }
      taken[j] = best;
      top[12 * at + 2 + 2 * j] = (float)best;
      top[12 * at + 3 + 2 * j] = line[best] - line[taken[0]];
    }
    top[12 * at] = line[out[2 * at]] - line[taken[0]];  // no logarithm, as in score
    top[12 * at + 1] = 0.0f;
  }
  return 0;
}
