// The shapes that the web side shares, for the type checker only: the plan as plan.js hands it out, and the
// executor protocol (the same as backends/base.py in Python).

/**
 * @typedef {{name: string, bytes: number, lifetime: "weight" | "kv" | "state" | "scratch", files: string[]}} PlanBuffer
 * @typedef {{name: string, buffer: number, offset: number, dtype: string, shape: number[]}} PlanTensor
 * @typedef {{name: string, access: "read" | "write" | "read_write"}} PlanArg
 * @typedef {{
 *   name: string, op: string, entry: string, args: PlanArg[], params: Record<string, number | string>,
 *   row_invariant: boolean, workgroup: number[], source: number[], bindings: number[]
 * }} PlanKernel
 * @typedef {{kernel: number, tensors: number[], grid: number[]}} PlanDispatch
 * @typedef {{name: string, model: string, width: number, dispatches: PlanDispatch[]}} PlanProgram
 * @typedef {{
 *   name: string, module: string, features: string[], limits: Record<string, number>,
 *   buffers: PlanBuffer[], tensors: PlanTensor[], kernels: PlanKernel[], programs: PlanProgram[]
 * }} PlanTarget
 * @typedef {{
 *   role: string, name: string, architecture: string, vocab_size: number, padded_vocab: number, max_context: number,
 *   num_layers: number, hidden: number, ffn: number, num_heads: number, num_kv_heads: number, head_dim: number,
 *   page_size: number, num_pages: number, prefill_width: number, widths: number[]
 * }} PlanModel
 * @typedef {{bos_id: number | null, add_bos: boolean, eos_ids: number[], special_ids: number[]}} PlanText
 * @typedef {{
 *   format: string, version: number, name: string, ids: Record<string, string | null>,
 *   text: PlanText, models: PlanModel[], targets: PlanTarget[]
 * }} Plan
 */

/**
 * @typedef {[string, number, number[] | Uint32Array]} Write tensor name, element offset, values
 * @typedef {[string, number, number]} Read tensor name, element offset, count
 * @typedef {{kind: string, writes: Write[], calls: string[], reads: Read[], masks?: number}} Submit
 * @typedef {{values: number[][], ms: number[]}} Readback
 */

/**
 * timing: what Readback.ms can tell: the time of each call, of the whole submit, or nothing worth measuring. isAsync: submit gives a promise once the device has the work, so that the host may do its own meanwhile. settle: until the
 * device has done all that it was given; the DeviceFault of a submit that was answered before it was done is thrown there, or
 * by the next submit.
 * @typedef {{
 *   info: {backend: string, adapter: string, self_test?: object, threads?: number, threads_reason?: string},
 *   plainSteps: number,
 *   rounds: number,
 *   timing: "calls" | "submits" | "none",
 *   weightSpace: (buffer: number, offset: number, bytes: number) => Uint8Array<ArrayBuffer>,
 *   weightsArrived: (buffer: number, offset: number, space: Uint8Array<ArrayBuffer>) => void,
 *   ready: (onProgress: (done: number, total: number) => void) => Promise<void>,
 *   isAsync: boolean,
 *   submit: (batch: Submit) => Readback | Promise<Readback>,
 *   settle: () => Promise<void>,
 *   close: () => void
 * }} Executor
 */

export {};
