// node run_wasm.mjs MODULE JOBS RESULTS: runs every job of a batch (jobs.py: serialize) with the kernels of one WASM
// module and writes the buffers asked for, one after the other. A write past the end of a buffer is an error.

import { readFileSync, writeFileSync } from "node:fs";

const ALIGN = 256;
const PAGE = 65536;
const up = (size) => Math.ceil(size / ALIGN) * ALIGN;

const [modulePath, jobsPath, resultsPath] = process.argv.slice(2);
const data = readFileSync(jobsPath);
const headerBytes = data.readUInt32LE(0);
const { jobs, canary, parts } = JSON.parse(data.subarray(4, 4 + headerBytes).toString());
const pool = data.subarray(4 + headerBytes);
const [canaryBytes, canaryByte] = canary;

const needed = Math.max(...jobs.map((job) => job.buffers.reduce((sum, [, size]) => sum + up(size + canaryBytes), 0)));
const memory = new WebAssembly.Memory({ initial: 64 + Math.ceil(needed / PAGE), maximum: 65536 }); // the module names one;
const { instance } = await WebAssembly.instantiate(readFileSync(modulePath), { env: { memory } });
const bytes = new Uint8Array(memory.buffer);
const heap = up(instance.exports.__heap_base.value);

/** Copies a job's buffers into memory; gives their addresses. */
function place(job) {
  let next = heap;
  return job.buffers.map(([offset, size]) => {
    const address = next;
    bytes.set(pool.subarray(offset, offset + size), address);
    bytes.fill(canaryByte, address + size, address + size + canaryBytes);
    next += up(size + canaryBytes);
    return address;
  });
}

function checkCanaries(job, addresses) {
  job.buffers.forEach(([, size], slot) => {
    const end = addresses[slot] + size;
    if (bytes.subarray(end, end + canaryBytes).some((byte) => byte !== canaryByte)) {
      throw new Error(`${job.steps[0][0]} wrote past the end of buffer ${slot}`);
    }
  });
}

const results = [];
for (const job of jobs) {
  const addresses = place(job);
  for (const [kernel, slots] of job.steps) {
    const pointers = slots.map((slot) => addresses[slot]);
    for (let part = parts - 1; part >= 0; part--) instance.exports[kernel](...pointers, part, parts);
  }
  checkCanaries(job, addresses);
  for (const slot of job.reads) results.push(bytes.slice(addresses[slot], addresses[slot] + job.buffers[slot][1]));
}
writeFileSync(resultsPath, Buffer.concat(results));
