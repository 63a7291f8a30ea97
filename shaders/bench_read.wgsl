// Reads a buffer once and nearly nothing else: the speed that weight-bound kernels are compared with.
// Bindings: 0 words [arrayLength] vec4<u32>, read; 1 out [1] u32, written in a case that never comes, so that no compiler drops the reads.
// Workgroup 256, grid-stride. Row-invariant: no rows.
@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(256)
fn stream(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  var sum = vec4<u32>(0u);
  let step = groups.x * 256u;
  let count = arrayLength(&words);
  for (var i = id.x; i < count; i += step) { sum += words[i]; }
  if (sum.x + sum.y + sum.z + sum.w == 12345u) { out[0] = 1u; }
}