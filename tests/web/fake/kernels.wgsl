// The twin of kernels.c for WebGPU: one invocation does all rows in order. //! marks the parts: each kernel's module is
// the common part followed by its own.
//! common
fn mix_bits(a: u32) -> u32 {
  var x = a;
  x ^= x >> 16u;
  x *= 0x7feb352du;
  x ^= x >> 15u;
  x *= 0x846ca68bu;
  return x ^ (x >> 16u);
}
fn next_id(h: u32, token: i32) -> i32 {
  if (token == 0xc3) { return 0xa9; }
  if (token == 0xf0) { return 0x9f; }
  if (token == 0x9f) { return 0x98; }
  if (token == 0x98) { return 0x80 + i32(h & 63u); }
  let r = (h >> 7u) & 63u;
  if (r == 0u) { return 0xc3; }
  if (r == 1u) { return 0xf0; }
  if (r == 2u && ((h >> 13u) & 3u) == 0u) { return 299; }
  if (r < 14u) { return 32; }
  return 97 + i32((h >> 9u) % 26u);
}
fn logit(h: u32, v: i32) -> f32 { return f32(mix_bits(h ^ u32(v)) >> 16u) / 65536.0; }
//! model
@group(0) @binding(0) var<storage, read> args: array<i32>;
@group(0) @binding(1) var<storage, read> tokens: array<i32>;
@group(0) @binding(2) var<storage, read> table: array<i32>;
@group(0) @binding(3) var<storage, read> weights: array<u32>;
@group(0) @binding(4) var<storage, read_write> kv: array<u32>;
fn append(position: i32) -> u32 {
  var before = 0x9e3779b9u;
  if (position > 0) { before = kv[table[(position - 1) / 16] * 16 + (position - 1) % 16]; }
  let token = tokens[position];
  let h = mix_bits(before + weights[(token * 13) % 4096] + u32(token));
  kv[table[position / 16] * 16 + position % 16] = h;
  return h;
}
//! prefill model
@compute @workgroup_size(1) fn prefill() {
  for (var row = 0; row < args[1]; row++) { _ = append(args[0] + row); }
}
//! verify model
@group(0) @binding(5) var<storage, read_write> result: array<i32>;
@group(0) @binding(6) var<storage, read_write> logits: array<f32>;
@compute @workgroup_size(1) fn verify() {
  for (var row = 0; row < args[1]; row++) {
    let h = append(args[0] + row);
    let id = next_id(h, tokens[args[0] + row]);
    for (var v = 0; v < 300; v++) { logits[row * 320 + v] = logit(h, v); }
    logits[row * 320 + id] = 4.0;
    result[2 * (args[3] + row)] = id;
    result[2 * (args[3] + row) + 1] = 1;
  }
}
//! step model
@group(0) @binding(5) var<storage, read_write> result: array<i32>;
@compute @workgroup_size(1) fn step_rows() {
  for (var row = 0; row < args[1]; row++) {
    let h = append(args[0] + row);
    var id = next_id(h, tokens[args[0] + row]);
    if (((h >> 20u) & 3u) == 0u) { id = 120; }
    result[2 * (args[3] + row)] = id;
    result[2 * (args[3] + row) + 1] = 1;
  }
}
//! measure
@group(0) @binding(0) var<storage, read> args: array<i32>;
@group(0) @binding(1) var<storage, read> table: array<i32>;
@group(0) @binding(2) var<storage, read> kv: array<u32>;
@group(0) @binding(3) var<storage, read_write> stats: array<f32>;
@compute @workgroup_size(1) fn measure() {
  for (var row = 0; row < args[1]; row++) {
    let h = kv[table[(args[0] + row) / 16] * 16 + (args[0] + row) % 16];
    var doubt = f32(((h >> 22u) & 7u) + 1u) / 8.0;
    if (((h >> 20u) & 3u) == 0u) { doubt = 2.0; }
    stats[2 * (args[3] + row)] = -doubt;
    stats[2 * (args[3] + row) + 1] = 2.0 * doubt;
  }
}
//! feedback
@group(0) @binding(0) var<storage, read_write> args: array<i32>;
@group(0) @binding(1) var<storage, read_write> tokens: array<i32>;
@group(0) @binding(2) var<storage, read> result: array<i32>;
@compute @workgroup_size(1) fn feedback() {
  if (args[2] == 0 || args[1] < 1) { return; }
  tokens[args[0] + args[1]] = result[2 * (args[3] + args[1] - 1)];
  args[0] += args[1];
  args[3] += args[1];
  args[1] = 1;
}
//! accept
@group(0) @binding(0) var<storage, read_write> args: array<i32>;
@group(0) @binding(1) var<storage, read> result: array<i32>;
@group(0) @binding(2) var<storage, read_write> tokens: array<i32>;
@group(0) @binding(3) var<storage, read_write> draft: array<i32>;
@compute @workgroup_size(1) fn accept() {
  var row = 0;
  while (row < args[1] - 1 && result[2 * (args[3] + row)] == tokens[args[0] + row + 1]) { row++; }
  tokens[args[0] + row + 1] = result[2 * (args[3] + row)];
  draft[0] = args[0] + row;
  draft[1] = 2;
  args[0] += row + 1;
  args[3] += args[1];
}
//! score
@group(0) @binding(0) var<storage, read> args: array<i32>;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> ids: array<i32>;
@group(0) @binding(3) var<storage, read_write> scores: array<f32>;
@compute @workgroup_size(1) fn score() {
  for (var row = 0; row < args[1]; row++) {
    var first = logits[row * 320];
    var second = -1.0;
    for (var v = 1; v < 300; v++) {
      let x = logits[row * 320 + v];
      if (x > first) { second = first; first = x; } else if (x > second) { second = x; }
    }
    scores[3 * row] = first - second;
    scores[3 * row + 1] = logits[row * 320 + ids[row]] - first;
    scores[3 * row + 2] = first;
  }
}

//! logprobs
@group(0) @binding(0) var<storage, read> args: array<i32>;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> out: array<i32>;
@group(0) @binding(3) var<storage, read_write> top: array<f32>;
@compute @workgroup_size(1) fn logprobs() {
  for (var row = 0; row < args[1]; row++) {
    let at = args[3] + row - select(0, 1, args[2] == 1);
    var taken = array<i32, 5>(-1, -1, -1, -1, -1);
    for (var j = 0; j < 5; j++) {
      var best = -1;
      for (var v = 0; v < 300; v++) {
        var is_taken = false;
        for (var i = 0; i < j; i++) { is_taken = is_taken || taken[i] == v; }
        if (!is_taken && (best < 0 || logits[row * 320 + v] > logits[row * 320 + max(best, 0)])) { best = v; }
      }
      taken[j] = best;
      top[12 * at + 2 + 2 * j] = f32(best);
      top[12 * at + 3 + 2 * j] = logits[row * 320 + best] - logits[row * 320 + taken[0]];
    }
    top[12 * at] = logits[row * 320 + out[2 * at]] - logits[row * 320 + taken[0]];
    top[12 * at + 1] = 0.0;
  }
}
