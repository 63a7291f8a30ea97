"""Cross-reference checks of a well-formed plan: what a type cannot say.

Knows the meaning of the fields, not their JSON form (codec.py does) and not the files of the bundle.
Invariant: a plan that passes can be executed without a further bounds check on any index, offset or size in
it; a plan that does not ends in an ArtifactError whose `where` is the JSON path of the first wrong value.
Checked in the order: models, text, ids, then each target's buffers, tensors, kernels, programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from specdec_runtime.plan.codec import fail
from specdec_runtime.plan.schema import (
    MAX_ROWS,
    TOKENS_SLACK,
    Model,
    Plan,
    Target,
    host_tensors,
    program_widths,
)

OFFSET_ALIGNMENT = 256  # WebGPU's minStorageBufferOffsetAlignment
MAX_PAGE = 256  # the page size divides this


def check_plan(plan: Plan) -> None:
    """Raise ArtifactError at the first thing that does not fit."""
    _require(bool(plan.name), "$.name", "is empty")
    _check_models(plan.models)
    _check_text(plan)
    _check_ids(plan)
    _require(bool(plan.targets), "$.targets", "there is no target")
    _unique([target.name for target in plan.targets], "$.targets", ".name")
    for index, target in enumerate(plan.targets):
        _check_target(target, plan.models, f"$.targets[{index}]")


def _require(holds: bool, path: str, message: str) -> None:
    if not holds:
        fail(path, message)


def _unique(values: Iterable[object], path: str, suffix: str = "") -> None:
    seen = set()
    for index, value in enumerate(values):
        _require(value not in seen, f"{path}[{index}]{suffix}", f"{value!r} appears twice")
        seen.add(value)


def _check_models(models: tuple[Model, ...]) -> None:
    roles = [model.role for model in models]
    _require(
        roles in (["target"], ["target", "draft"]), "$.models", "must be the target, then at most one draft"
    )
    for index, model in enumerate(models):
        _check_model(model, f"$.models[{index}]")
        same = model.vocab_size == models[0].vocab_size
        _require(
            same, f"$.models[{index}].vocab_size", "differs from the target's; both read one tokens tensor"
        )


_SIZES = ("vocab_size", "max_context", "num_layers", "hidden", "ffn", "num_heads", "num_kv_heads", "head_dim")


def _check_model(model: Model, path: str) -> None:
    for name in _SIZES:
        _require(getattr(model, name) > 0, f"{path}.{name}", "must be positive")
    _require(model.padded_vocab >= model.vocab_size, f"{path}.padded_vocab", "is below vocab_size")
    _require(model.num_heads % model.num_kv_heads == 0, f"{path}.num_kv_heads", "does not divide num_heads")
    divides = model.page_size > 0 and MAX_PAGE % model.page_size == 0
    _require(divides, f"{path}.page_size", f"must divide {MAX_PAGE}")
    pages = -(-model.max_context // model.page_size)
    _require(
        model.num_pages == pages, f"{path}.num_pages", f"must be {pages}, max_context / page_size rounded up"
    )
    fits = 0 < model.prefill_width <= TOKENS_SLACK
    _require(fits, f"{path}.prefill_width", f"must be 1 to {TOKENS_SLACK}")
    _check_widths(model.widths, f"{path}.widths")


def _check_widths(widths: tuple[int, ...], path: str) -> None:
    _require(widths[:1] == (1,), path, "must start with 1")
    _require(list(widths) == sorted(set(widths)), path, "must increase")
    _require(widths[-1] <= MAX_ROWS, path, f"must be at most {MAX_ROWS}")


def _check_text(plan: Plan) -> None:
    text, vocab_size = plan.text, plan.target_model.vocab_size
    _require(text.bos_id is not None or not text.add_bos, "$.text.add_bos", "is true but there is no bos_id")
    if text.bos_id is not None:
        _require(0 <= text.bos_id < vocab_size, "$.text.bos_id", "is outside the vocabulary")
    for name in ("eos_ids", "special_ids"):
        ids = getattr(text, name)
        _unique(ids, f"$.text.{name}")
        for index, token_id in enumerate(ids):
            _require(0 <= token_id < vocab_size, f"$.text.{name}[{index}]", "is outside the vocabulary")


def _check_ids(plan: Plan) -> None:
    for name in ("recipe", "weights", "tokenizer", "chat_template", "kernels"):
        value = getattr(plan.ids, name)
        if name != "chat_template" or value is not None:
            is_sha = len(value) == 64 and set(value) <= set("0123456789abcdef")
            _require(is_sha, f"$.ids.{name}", "is not a sha256 in lower-case hex")


def _check_target(target: Target, models: tuple[Model, ...], path: str) -> None:
    _require(bool(target.name), f"{path}.name", "is empty")
    _require(_is_bundle_path(target.module), f"{path}.module", "is not a path inside the bundle")
    _unique(target.features, f"{path}.features")
    for name, limit in target.limits.items():
        _require(limit > 0, f"{path}.limits.{name}", "must be positive")
    _check_buffers(target, path)
    _check_tensors(target, path)
    _check_kernels(target, path)
    _check_programs(target, models, path)
    _check_host_tensors(target, models, path)


def _is_bundle_path(name: str) -> bool:
    """Relative, forward slashes, no way out of the bundle."""
    parts = name.split("/")
    return "\\" not in name and ":" not in name and not {"", ".", ".."} & set(parts)


def _check_buffers(target: Target, path: str) -> None:
    _unique([buffer.name for buffer in target.buffers], f"{path}.buffers", ".name")
    largest = target.limits.get("maxBufferSize")
    seen: set[str] = set()
    for index, buffer in enumerate(target.buffers):
        here = f"{path}.buffers[{index}]"
        _require(
            buffer.bytes > 0 and buffer.bytes % 4 == 0, f"{here}.bytes", "must be a positive multiple of 4"
        )
        _require(
            largest is None or buffer.bytes <= largest, f"{here}.bytes", f"is above maxBufferSize {largest}"
        )
        is_weight = buffer.lifetime == "weight"
        _require(
            bool(buffer.files) == is_weight, f"{here}.files", "weight buffers have files, others have none"
        )
        for number, name in enumerate(buffer.files):
            _require(_is_bundle_path(name), f"{here}.files[{number}]", "is not a path inside the bundle")
            _require(name not in seen, f"{here}.files[{number}]", f"{name!r} appears twice")
            seen.add(name)


def _check_tensors(target: Target, path: str) -> None:
    _unique([tensor.name for tensor in target.tensors], f"{path}.tensors", ".name")
    for index, tensor in enumerate(target.tensors):
        here = f"{path}.tensors[{index}]"
        _require(0 <= tensor.buffer < len(target.buffers), f"{here}.buffer", "there is no such buffer")
        _require(bool(tensor.shape) and min(tensor.shape) > 0, f"{here}.shape", "must be positive sizes")
        aligned = tensor.offset >= 0 and tensor.offset % OFFSET_ALIGNMENT == 0
        _require(aligned, f"{here}.offset", f"must be a multiple of {OFFSET_ALIGNMENT}")
        end, size = tensor.offset + tensor.num_bytes, target.buffers[tensor.buffer].bytes
        _require(end <= size, f"{here}.shape", f"ends at byte {end} of a buffer of {size}")


def _check_kernels(target: Target, path: str) -> None:
    _unique([kernel.name for kernel in target.kernels], f"{path}.kernels", ".name")
    most_bindings = target.limits.get("maxStorageBuffersPerShaderStage")
    most_lanes = target.limits.get("maxComputeInvocationsPerWorkgroup")
    for index, kernel in enumerate(target.kernels):
        here = f"{path}.kernels[{index}]"
        _require(bool(kernel.entry), f"{here}.entry", "is empty")
        count = len(kernel.args)
        _require(count > 0, f"{here}.args", "is empty")
        _require(
            most_bindings is None or count <= most_bindings, f"{here}.args", f"are more than {most_bindings}"
        )
        _unique([arg.name for arg in kernel.args], f"{here}.args", ".name")
        bound = sorted(kernel.bindings) == list(range(count))
        _require(bound, f"{here}.bindings", "must name every argument once")
        lanes = prod(kernel.workgroup)
        _require(min(kernel.workgroup) > 0, f"{here}.workgroup", "must be positive")
        _require(
            most_lanes is None or lanes <= most_lanes, f"{here}.workgroup", f"is above {most_lanes} lanes"
        )
        _require(min(kernel.source) >= 0, f"{here}.source", "must not be negative")


def _check_programs(target: Target, models: tuple[Model, ...], path: str) -> None:
    _unique([program.name for program in target.programs], f"{path}.programs", ".name")
    roles = {model.role for model in models}
    needed = {name: width for model in models for name, width in program_widths(model).items()}
    for index, program in enumerate(target.programs):
        here = f"{path}.programs[{index}]"
        _require(program.model in roles, f"{here}.model", "there is no such model")
        _require(program.width > 0, f"{here}.width", "must be positive")
        width = needed.pop(program.name, program.width)
        _require(program.width == width, f"{here}.width", f"must be {width}")
        _require(bool(program.dispatches), f"{here}.dispatches", "is empty")
        _check_dispatches(target, index, here)
    _require(not needed, f"{path}.programs", f"lacks {', '.join(needed)}")


def _check_dispatches(target: Target, program: int, path: str) -> None:
    num_kernels, num_tensors = len(target.kernels), len(target.tensors)
    for index, dispatch in enumerate(target.programs[program].dispatches):
        here = f"{path}.dispatches[{index}]"
        _require(0 <= dispatch.kernel < num_kernels, f"{here}.kernel", "there is no such kernel")
        count = len(target.kernels[dispatch.kernel].args)
        _require(len(dispatch.tensors) == count, f"{here}.tensors", f"the kernel has {count} arguments")
        for number, tensor in enumerate(dispatch.tensors):
            _require(0 <= tensor < num_tensors, f"{here}.tensors[{number}]", "there is no such tensor")
        _require(min(dispatch.grid) > 0, f"{here}.grid", "must be positive")
        _check_writes(target, dispatch, here)


def _check_writes(target: Target, dispatch, path: str) -> None:
    """A written tensor is no weight, and shares no byte with another argument of the same dispatch."""
    args = target.kernels[dispatch.kernel].args
    spans = [_span(target, tensor) for tensor in dispatch.tensors]
    for number, (buffer, start, end) in enumerate(spans):
        if args[number].access == "read":
            continue
        here = f"{path}.tensors[{number}]"
        _require(target.buffers[buffer].lifetime != "weight", here, "a kernel writes to a weight")
        for other, (other_buffer, other_start, other_end) in enumerate(spans):
            apart = other == number or other_buffer != buffer or other_end <= start or end <= other_start
            _require(apart, here, f"written by the kernel, and overlaps its argument {other}")


def _span(target: Target, index: int) -> tuple[int, int, int]:
    tensor = target.tensors[index]
    return tensor.buffer, tensor.offset, tensor.offset + tensor.num_bytes


def _check_host_tensors(target: Target, models: tuple[Model, ...], path: str) -> None:
    """The tensors the decode core names exist, with their type, and outlive a program."""
    index_of = {tensor.name: index for index, tensor in enumerate(target.tensors)}
    named = host_tensors(models)
    logits = ("float32", (MAX_ROWS, models[0].padded_vocab))
    for name, (dtype, shape) in {**named, "target.logits": logits}.items():
        _require(name in index_of, f"{path}.tensors", f"lacks {name}")
        here, tensor = f"{path}.tensors[{index_of[name]}]", target.tensors[index_of[name]]
        _require(tensor.dtype == dtype, f"{here}.dtype", f"{name} must be {dtype}")
        _require(tensor.shape == shape, f"{here}.shape", f"{name} must be {list(shape)}")
        lasting = name not in named or target.buffers[tensor.buffer].lifetime == "state"
        _require(lasting, f"{here}.buffer", f"{name} must lie in a state buffer")
