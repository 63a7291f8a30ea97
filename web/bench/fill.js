// Random weights made on the device: words are hashes, scales are small, so that activations stay finite.


/** @param {import("../executor/webgpu.js").WebGpuExecutor} executor */
export async function fillWeights(executor) {
  const { device, target, buffers } = executor;
  const code = await (await fetch(new URL("../shaders/bench_fill.wgsl", import.meta.url))).text();
  const module = device.createShaderModule({ code });
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
