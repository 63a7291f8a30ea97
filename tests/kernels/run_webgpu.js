// Runs every job of a batch (jobs.py: serialize, fetched from /jobs) on WebGPU, posts the buffers asked for to /results
// and gives the adapter's name. Buffers that a job only reads are uploaded once.

const STAGE_BYTES = 32 << 20;

async function makeDevice() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw new Error("the browser names no WebGPU adapter, though its flags ask for SwiftShader");
  const device = await adapter.requestDevice();
  const faults = [];
  device.addEventListener("uncapturederror", (event) => faults.push(event.error.message));
  device.lost.then((info) => faults.push(`device lost: ${info.message}`));
  return { device, faults, name: `${adapter.info.vendor} ${adapter.info.architecture}` };
}

async function makePipeline(device, { text, entry }) {
  const module = device.createShaderModule({ code: text });
  return device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: entry } });
}

class Runner {
  constructor(device, kernels, pipelines, pool) {
    Object.assign(this, { device, kernels, pipelines, pool, uploaded: new Map(), owned: [] });
  }

  upload([offset, size]) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const buffer = this.device.createBuffer({ size, usage });
    this.device.queue.writeBuffer(buffer, 0, this.pool, offset, size);
    return buffer;
  }

  buffer(place, written) {
    if (written) {
      this.owned.push(this.upload(place));
      return this.owned.at(-1);
    }
    const key = place.join();
    if (!this.uploaded.has(key)) this.uploaded.set(key, this.upload(place));
    return this.uploaded.get(key);
  }

  encode(encoder, job) {
    const written = new Set(job.reads);
    const partial = job.steps.length > 1; // what one step writes and the next reads must not be shared either
    const buffers = job.buffers.map((place, slot) => this.buffer(place, written.has(slot) || partial));
    const pass = encoder.beginComputePass();
    for (const [name, slots] of job.steps) {
      const pipeline = this.pipelines.get(name);
      const order = this.kernels[name].bindings;
      const entries = order.map((arg, binding) => ({ binding, resource: { buffer: buffers[slots[arg]] } }));
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, this.device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
      pass.dispatchWorkgroups(...this.kernels[name].grid);
    }
    pass.end();
    return job.reads.map((slot) => [buffers[slot], job.buffers[slot][1]]);
  }

  /** Runs jobs in one submit; gives their results, concatenated. */
  async submit(jobs, size) {
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const staging = this.device.createBuffer({ size, usage });
    const encoder = this.device.createCommandEncoder();
    let at = 0;
    for (const job of jobs) {
      for (const [buffer, bytes] of this.encode(encoder, job)) {
        encoder.copyBufferToBuffer(buffer, 0, staging, at, bytes);
        at += bytes;
      }
    }
    this.device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    const result = staging.getMappedRange().slice(0);
    staging.destroy();
    for (const buffer of this.owned.splice(0)) buffer.destroy();
    return result;
  }
}

/** Cuts the jobs into submits of bounded result size. */
function* submits(jobs) {
  let pending = [];
  let size = 0;
  for (const job of jobs) {
    pending.push(job);
    size += job.reads.reduce((sum, slot) => sum + job.buffers[slot][1], 0);
    if (size > STAGE_BYTES || pending.length === 200) {
      yield [pending, size];
      pending = [];
      size = 0;
    }
  }
  if (pending.length) yield [pending, size];
}

export async function main() {
  const data = await (await fetch("/jobs")).arrayBuffer();
  const headerBytes = new DataView(data).getUint32(0, true);
  const { jobs, kernels } = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, headerBytes)));
  const { device, faults, name } = await makeDevice();
  const names = Object.keys(kernels);
  const made = await Promise.all(names.map((kernel) => makePipeline(device, kernels[kernel])));
  const pipelines = new Map(names.map((kernel, i) => [kernel, made[i]]));
  const runner = new Runner(device, kernels, pipelines, new Uint8Array(data, 4 + headerBytes));
  const results = [];
  for (const [some, size] of submits(jobs)) {
    results.push(await runner.submit(some, size));
    if (faults.length) throw new Error(faults.join("; "));
  }
  await fetch("/results", { method: "POST", body: new Blob(results) });
  return name;
}
