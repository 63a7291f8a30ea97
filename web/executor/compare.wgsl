// Purpose: counts the 32-bit words in which two ranges differ; the load-time self-test of row invariance (web/executor/row_probe.js).
// Bindings: 0 `found`, the range under test, from word `job.left` on; 1 `expected`, from `job.right` on; 2 `differ`, one count a row of
//   `columns` words, from `job.result` on; 3 the job, at a dynamic offset.
// Shapes: `count` words = rows x `columns`; of every row the first `used` words are compared, the rest is padding.
// Workgroup: 256 threads in one dimension; any number of workgroups, each thread strides over the range.
// Row-invariant: compares bits and adds integers only.
struct Job { left: u32, right: u32, count: u32, columns: u32, used: u32, result: u32 }

@group(0) @binding(0) var<storage, read> found: array<u32>;
@group(0) @binding(1) var<storage, read> expected: array<u32>;
@group(0) @binding(2) var<storage, read_write> differ: array<atomic<u32>>;
@group(0) @binding(3) var<uniform> job: Job;

@compute @workgroup_size(256)
fn compare(@builtin(global_invocation_id) thread: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  for (var i = thread.x; i < job.count; i += 256u * groups.x) {
    if (i % job.columns < job.used && found[job.left + i] != expected[job.right + i]) {
      atomicAdd(&differ[job.result + i / job.columns], 1u);
    }
  }
}
