// Two kernels that do nothing but change one word: alternating, each waits for the other, and their time is the floor of a dispatch.

@group(0) @binding(0) var<storage, read_write> word: array<u32>;

@compute @workgroup_size(1)
fn one() {
  word[0] += 1u;
}

@compute @workgroup_size(1)
fn two() {
  word[0] *= 3u;
}
