// Random weights for measurements: words are hashes, floats are small, so that activations stay finite.
// Bindings: 0 words [count] u32, written; 1 range (offset, count, seed, kind: 0 words, 1 floats). Workgroup 256, grid-stride. Row-invariant: no rows.
struct Range { offset: u32, count: u32, seed: u32, kind: u32 }
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(1) var<uniform> range: Range;
fn hash(x: u32) -> u32 {
  var h = x * 747796405u + 2891336453u;
  h = ((h >> ((h >> 28u) + 4u)) ^ h) * 277803737u;
  return (h >> 22u) ^ h;
}
@compute @workgroup_size(256)
fn fill(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  for (var i = id.x; i < range.count; i += groups.x * 256u) {
    let bits = hash(i ^ range.seed);
    let unit = f32(bits >> 8u) / 16777216.0;
    words[range.offset + i] = select(bits, bitcast<u32>((unit - 0.5) * 0.004), range.kind == 1u);
  }
}