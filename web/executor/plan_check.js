// Cross-reference checks of a well-formed plan, rule for rule those of specdec_runtime/plan/check.py.
//
// Invariant: a plan that passes runs without a further bounds check on any index, offset or size in it. The order of
// the checks is Python's too, so that both name the same first fault.

/** @typedef {import("./types.js").Plan} Plan */
/** @typedef {import("./types.js").PlanModel} PlanModel */
/** @typedef {import("./types.js").PlanTarget} PlanTarget */
/** @typedef {import("./types.js").PlanDispatch} PlanDispatch */
/** @typedef {(path: string, message: string) => never} Fail */

const MAX_ROWS = 8;
const OUT_ROWS = 32;
const TOKENS_SLACK = 64;
const SAMPLING_INTS = 64;
const SAMPLING_FLOATS = 16;
const MAX_BANNED = 32;
const BANNED_FIELDS = 8;
const TOP_FIELDS = 12;
const VERDICT_ROWS = 8;
const VERDICT_FIELDS = 4;
const TARGET_PASSES = ["verify", "sample", "filter", "score", "logprobs"];
const DRAFT_PASSES = ["step", "sample", "measure"];
const OFFSET_ALIGNMENT = 256;
const MAX_PAGE = 256;
/** @type {Record<string, number>} */
const DTYPE_BYTES = { int8: 1, uint8: 1, int16: 2, int32: 4, uint32: 4, float32: 4 };
/** @type {(keyof PlanModel)[]} */
const SIZES = ["vocab_size", "max_context", "num_layers", "hidden", "ffn", "num_heads", "num_kv_heads", "head_dim"];

/** @param {number[]} numbers @returns {number} */
const product = (numbers) => numbers.reduce((result, number) => result * number, 1);

/** @param {string} name @returns {boolean} relative, forward slashes, no way out of the bundle */
function isBundlePath(name) {
  if (name.includes("\\") || name.includes(":")) return false;
  return !name.split("/").some((part) => part === "" || part === "." || part === "..");
}

class Checker {
  /** @param {Plan} plan @param {Fail} fail */
  constructor(plan, fail) {
    this.plan = plan;
    this.models = plan.models;
    this.fail = fail;
  }

  /** @param {boolean} holds @param {string} path @param {string} message */
  need(holds, path, message) {
    if (!holds) this.fail(path, message);
  }

  /** @param {(string | number)[]} values @param {string} path @param {string} [suffix] */
  unique(values, path, suffix = "") {
    const seen = new Set();
    values.forEach((value, index) => {
      this.need(!seen.has(value), `${path}[${index}]${suffix}`, `${JSON.stringify(value)} appears twice`);
      seen.add(value);
    });
  }

  all() {
    const { plan } = this;
    this.need(plan.name !== "", "$.name", "is empty");
    this.allModels();
    this.text();
    this.ids();
    this.need(plan.targets.length > 0, "$.targets", "there is no target");
    this.unique(plan.targets.map((target) => target.name), "$.targets", ".name");
    plan.targets.forEach((target, index) => this.target(target, `$.targets[${index}]`));
  }

  allModels() {
    const roles = this.models.map((model) => model.role).join();
    this.need(roles === "target" || roles === "target,draft", "$.models", "must be the target, then at most one draft");
    this.models.forEach((model, index) => {
      this.model(model, `$.models[${index}]`);
      const same = model.vocab_size === this.models[0].vocab_size;
      this.need(same, `$.models[${index}].vocab_size`, "differs from the target's; both read one tokens tensor");
    });
  }

  /** @param {PlanModel} model @param {string} path */
  model(model, path) {
    for (const name of SIZES) this.need(Number(model[name]) > 0, `${path}.${name}`, "must be positive");
    this.need(model.padded_vocab >= model.vocab_size, `${path}.padded_vocab`, "is below vocab_size");
    this.need(model.num_heads % model.num_kv_heads === 0, `${path}.num_kv_heads`, "does not divide num_heads");
    const divides = model.page_size > 0 && MAX_PAGE % model.page_size === 0;
    this.need(divides, `${path}.page_size`, `must divide ${MAX_PAGE}`);
    const pages = Math.ceil(model.max_context / model.page_size);
    this.need(model.num_pages === pages, `${path}.num_pages`, `must be ${pages}, max_context / page_size rounded up`);
    const fits = model.prefill_width > 0 && model.prefill_width <= TOKENS_SLACK;
    this.need(fits, `${path}.prefill_width`, `must be 1 to ${TOKENS_SLACK}`);
    this.widths(model.widths, `${path}.widths`);
  }

  /** @param {number[]} widths @param {string} path */
  widths(widths, path) {
    this.need(widths[0] === 1, path, "must start with 1");
    this.need(widths.every((width, i) => i === 0 || widths[i - 1] < width), path, "must increase");
    this.need(widths[widths.length - 1] <= MAX_ROWS, path, `must be at most ${MAX_ROWS}`);
  }

  text() {
    const { text } = this.plan;
    const inside = (/** @type {number} */ id) => id >= 0 && id < this.models[0].vocab_size;
    this.need(text.bos_id !== null || !text.add_bos, "$.text.add_bos", "is true but there is no bos_id");
    this.need(text.bos_id === null || inside(text.bos_id), "$.text.bos_id", "is outside the vocabulary");
    for (const name of /** @type {const} */ (["eos_ids", "special_ids"])) {
      this.unique(text[name], `$.text.${name}`);
      text[name].forEach((id, i) => this.need(inside(id), `$.text.${name}[${i}]`, "is outside the vocabulary"));
    }
  }

  ids() {
    for (const name of ["recipe", "weights", "tokenizer", "chat_template", "kernels"]) {
      const value = this.plan.ids[name];
      if (name === "chat_template" && value === null) continue;
      this.need(/^[0-9a-f]{64}$/.test(String(value)), `$.ids.${name}`, "is not a sha256 in lower-case hex");
    }
  }

  /** @param {PlanTarget} target @param {string} path */
  target(target, path) {
    this.need(target.name !== "", `${path}.name`, "is empty");
    this.need(isBundlePath(target.module), `${path}.module`, "is not a path inside the bundle");
    this.unique(target.features, `${path}.features`);
    for (const [name, limit] of Object.entries(target.limits)) {
      this.need(limit > 0, `${path}.limits.${name}`, "must be positive");
    }
    this.buffers(target, path);
    this.tensors(target, path);
    this.kernels(target, path);
    this.programs(target, path);
    this.hostTensors(target, path);
  }

  /** @param {PlanTarget} target @param {string} path */
  buffers(target, path) {
    this.unique(target.buffers.map((buffer) => buffer.name), `${path}.buffers`, ".name");
    const largest = target.limits.maxBufferSize ?? Infinity;
    const seen = new Set();
    target.buffers.forEach((buffer, index) => {
      const here = `${path}.buffers[${index}]`;
      this.need(buffer.bytes > 0 && buffer.bytes % 4 === 0, `${here}.bytes`, "must be a positive multiple of 4");
      this.need(buffer.bytes <= largest, `${here}.bytes`, `is above maxBufferSize ${largest}`);
      const isWeight = buffer.lifetime === "weight";
      this.need(buffer.files.length > 0 === isWeight, `${here}.files`, "weight buffers have files, others have none");
      buffer.files.forEach((name, number) => {
        this.need(isBundlePath(name), `${here}.files[${number}]`, "is not a path inside the bundle");
        this.need(!seen.has(name), `${here}.files[${number}]`, `${JSON.stringify(name)} appears twice`);
        seen.add(name);
      });
    });
  }

  /** @param {PlanTarget} target @param {string} path */
  tensors(target, path) {
    this.unique(target.tensors.map((tensor) => tensor.name), `${path}.tensors`, ".name");
    target.tensors.forEach((tensor, index) => {
      const here = `${path}.tensors[${index}]`;
      this.need(tensor.buffer >= 0 && tensor.buffer < target.buffers.length, `${here}.buffer`, "there is no such buffer");
      this.need(tensor.shape.length > 0 && tensor.shape.every((n) => n > 0), `${here}.shape`, "must be positive sizes");
      const aligned = tensor.offset >= 0 && tensor.offset % OFFSET_ALIGNMENT === 0;
      this.need(aligned, `${here}.offset`, `must be a multiple of ${OFFSET_ALIGNMENT}`);
      const [, , end] = this.span(target, index);
      const size = target.buffers[tensor.buffer].bytes;
      this.need(end <= size, `${here}.shape`, `ends at byte ${end} of a buffer of ${size}`);
    });
  }

  /** @param {PlanTarget} target @param {string} path */
  kernels(target, path) {
    this.unique(target.kernels.map((kernel) => kernel.name), `${path}.kernels`, ".name");
    const mostBindings = target.limits.maxStorageBuffersPerShaderStage ?? Infinity;
    const mostLanes = target.limits.maxComputeInvocationsPerWorkgroup ?? Infinity;
    target.kernels.forEach((kernel, index) => {
      const here = `${path}.kernels[${index}]`;
      const count = kernel.args.length;
      this.need(kernel.entry !== "", `${here}.entry`, "is empty");
      this.need(count > 0, `${here}.args`, "is empty");
      this.need(count <= mostBindings, `${here}.args`, `are more than ${mostBindings}`);
      this.unique(kernel.args.map((arg) => arg.name), `${here}.args`, ".name");
      const bound = [...kernel.bindings].sort((a, b) => a - b);
      const once = bound.length === count && bound.every((arg, i) => arg === i);
      this.need(once, `${here}.bindings`, "must name every argument once");
      this.need(Math.min(...kernel.workgroup) > 0, `${here}.workgroup`, "must be positive");
      this.need(product(kernel.workgroup) <= mostLanes, `${here}.workgroup`, `is above ${mostLanes} lanes`);
      this.need(Math.min(...kernel.source) >= 0, `${here}.source`, "must not be negative");
    });
  }

  /** @returns {Map<string, number>} the programs that the decode core calls, with their widths */
  neededPrograms() {
    const needed = new Map();
    for (const model of this.models) {
      needed.set(`${model.role}.prefill`, model.prefill_width);
      for (const kind of model.role === "target" ? TARGET_PASSES : DRAFT_PASSES) {
        for (const width of model.widths) needed.set(`${model.role}.${kind}_${width}`, width);
      }
      if (model.role !== "draft") continue;
      for (const width of model.widths) needed.set(`draft.draw_${width}`, width);
      for (const name of ["accept", "judge", "judge_filter", "follow"]) needed.set(`draft.${name}`, MAX_ROWS);
    }
    return needed;
  }

  /** @param {PlanTarget} target @param {string} path */
  programs(target, path) {
    this.unique(target.programs.map((program) => program.name), `${path}.programs`, ".name");
    const needed = this.neededPrograms();
    target.programs.forEach((program, index) => {
      const here = `${path}.programs[${index}]`;
      this.need(this.models.some((model) => model.role === program.model), `${here}.model`, "there is no such model");
      this.need(program.width > 0, `${here}.width`, "must be positive");
      const width = needed.get(program.name) ?? program.width;
      needed.delete(program.name);
      this.need(program.width === width, `${here}.width`, `must be ${width}`);
      this.need(program.dispatches.length > 0, `${here}.dispatches`, "is empty");
      program.dispatches.forEach((dispatch, i) => this.dispatch(target, dispatch, `${here}.dispatches[${i}]`));
    });
    this.need(needed.size === 0, `${path}.programs`, `lacks ${[...needed.keys()].join(", ")}`);
  }

  /** @param {PlanTarget} target @param {PlanDispatch} dispatch @param {string} path */
  dispatch(target, dispatch, path) {
    const kernel = target.kernels[dispatch.kernel];
    this.need(kernel !== undefined, `${path}.kernel`, "there is no such kernel");
    this.need(dispatch.tensors.length === kernel.args.length, `${path}.tensors`, `the kernel has ${kernel.args.length} arguments`);
    dispatch.tensors.forEach((tensor, i) => {
      this.need(target.tensors[tensor] !== undefined, `${path}.tensors[${i}]`, "there is no such tensor");
    });
    this.need(Math.min(...dispatch.grid) > 0, `${path}.grid`, "must be positive");
    this.writes(target, dispatch, path);
  }

  /** A written tensor is no weight and shares no byte with another argument of the same dispatch.
   * @param {PlanTarget} target @param {PlanDispatch} dispatch @param {string} path */
  writes(target, dispatch, path) {
    const spans = dispatch.tensors.map((tensor) => this.span(target, tensor));
    target.kernels[dispatch.kernel].args.forEach((arg, i) => {
      if (arg.access === "read") return;
      const [buffer, start, end] = spans[i];
      this.need(target.buffers[buffer].lifetime !== "weight", `${path}.tensors[${i}]`, "a kernel writes to a weight");
      spans.forEach(([otherBuffer, otherStart, otherEnd], other) => {
        const apart = other === i || otherBuffer !== buffer || otherEnd <= start || end <= otherStart;
        this.need(apart, `${path}.tensors[${i}]`, `written by the kernel, and overlaps its argument ${other}`);
      });
    });
  }

  /** @param {PlanTarget} target @param {number} index @returns {[number, number, number]} buffer, start, end */
  span(target, index) {
    const { buffer, offset, shape, dtype } = target.tensors[index];
    return [buffer, offset, offset + product(shape) * DTYPE_BYTES[dtype]];
  }

  /** @returns {[string, string, number[]][]} name, dtype, shape of the tensors that the decode core names */
  namedTensors() {
    const { max_context: context, padded_vocab: columns } = this.models[0];
    /** @type {[string, string, number[]][]} */
    const named = [
      ["tokens", "int32", [context + TOKENS_SLACK]],
      ["target.score_ids", "int32", [MAX_ROWS]],
      ["target.score", "float32", [MAX_ROWS, 3]],
      ["sampling.ints", "int32", [SAMPLING_INTS]],
      ["sampling.floats", "float32", [SAMPLING_FLOATS]],
      ["sampling.bias", "float32", [columns]],
      ["sampling.mask", "uint32", [OUT_ROWS, Math.ceil(columns / 32)]],
      ["sampling.banned", "int32", [MAX_BANNED, BANNED_FIELDS]],
      ["target.top", "float32", [OUT_ROWS, TOP_FIELDS]],
      ["target.verdict", "int32", [VERDICT_ROWS, VERDICT_FIELDS]],
    ];
    for (const { role, num_pages } of this.models) {
      named.push([`${role}.args`, "int32", [4]], [`${role}.page_table`, "int32", [num_pages]]);
      named.push([`${role}.out`, "int32", [OUT_ROWS, 2]]);
      if (role === "draft") named.push(["draft.stats", "float32", [OUT_ROWS, 2]]);
    }
    return named;
  }

  /** @param {PlanTarget} target @param {string} path */
  hostTensors(target, path) {
    const logits = /** @type {[string, string, number[]]} */ (["target.logits", "float32", [MAX_ROWS, this.models[0].padded_vocab]]);
    for (const [name, dtype, shape] of [...this.namedTensors(), logits]) {
      const index = target.tensors.findIndex((tensor) => tensor.name === name);
      this.need(index >= 0, `${path}.tensors`, `lacks ${name}`);
      const tensor = target.tensors[index];
      const here = `${path}.tensors[${index}]`;
      this.need(tensor.dtype === dtype, `${here}.dtype`, `${name} must be ${dtype}`);
      this.need(tensor.shape.join() === shape.join(), `${here}.shape`, `${name} must be [${shape.join(", ")}]`);
      const lasting = name === "target.logits" || target.buffers[tensor.buffer].lifetime === "state";
      this.need(lasting, `${here}.buffer`, `${name} must lie in a state buffer`);
    }
  }
}

/** Throw (through `fail`) at the first thing that does not fit. @param {Plan} plan @param {Fail} fail */
export function checkPlan(plan, fail) {
  new Checker(plan, fail).all();
}
