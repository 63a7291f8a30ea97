// Random weights made on the device: words are hashes, scales are small, so that activations stay finite.

const WGSL = `
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
}`;

/** @param {import("../executor/webgpu.js").WebGpuExecutor} executor */
export async function fillWeights(executor) {
  const { device, target, buffers } = executor;
  const module = device.createShaderModule({ code: WGSL });
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "fill" } });
  const limit = device.limits.maxStorageBufferBindingSize;
  target.tensors.forEach((tensor, index) => {
    if (target.buffers[tensor.buffer].lifetime !== "weight") return;
    const words = tensor.shape.reduce((product, extent) => product * extent, 1);
    const uniform = device.createBuffer({ size: 16, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    const kind = tensor.dtype === "float32" ? 1 : 0;
    device.queue.writeBuffer(uniform, 0, new Uint32Array([0, words, index * 7919, kind]));
    const size = words * 4;
    if (size > limit) throw new Error(`${tensor.name} is larger than a binding may be`);
    const group = device.createBindGroup({
      layout: pipeline.getBindGroupLayout(0),
      entries: [
        { binding: 0, resource: { buffer: buffers[tensor.buffer], offset: tensor.offset, size } },
        { binding: 1, resource: { buffer: uniform } },
      ],
    });
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(Math.min(4096, Math.ceil(words / 256)));
    pass.end();
    device.queue.submit([encoder.finish()]);
  });
}
