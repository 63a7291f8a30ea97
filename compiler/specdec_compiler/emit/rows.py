"""GPU: a matrix larger than one binding may be is bound by rows, a window of them a dispatch.

A planned step whose weights are too large becomes one step a shard of rows: the same kernel over windows of its weights and of what it
writes. K is never cut and a row's float order follows from K alone (kernels/linear_gpu.py), so bits do not depend on the shards.
Shards begin at multiples of 64 rows: then every window begins at a multiple of 256 bytes, WebGPU's binding alignment. Does not know
where tensors lie (emit/plan.py); emit/weights.py cuts what it stores at the same rows.
"""

from __future__ import annotations

from dataclasses import replace

from specdec_runtime.faults import RequestError
from specdec_runtime.plan.schema import DTYPE_BYTES

from ..targets import GUARANTEED_LIMITS
from .programs import Place, ReadProgram, Step

ROW_STEP = 64  # rows; a block of 4 has at least 16 bytes of scales, and a column of f32 logits 4
MAX_BINDING = GUARANTEED_LIMITS["maxStorageBufferBindingSize"]


def row_shards(num_rows: int, row_bytes: int, max_binding: int) -> list[tuple[int, int]]:
    """(first row, rows) of each shard, as equal as can be; one when all fits. Raises RequestError when not even 64 rows fit."""
    if num_rows * row_bytes <= max_binding:
        return [(0, num_rows)]
    most = max_binding // row_bytes // ROW_STEP * ROW_STEP
    if most <= 0:
        message = f"{ROW_STEP} rows of a matrix take {ROW_STEP * row_bytes} bytes, a binding {max_binding}"
        raise RequestError(message, "--max-binding", "allow more bytes a binding")
    count = -(-num_rows // most)
    step = -(-num_rows // count // ROW_STEP) * ROW_STEP
    return [(first, min(step, num_rows - first)) for first in range(0, num_rows, step)]


def matrix_shards(codes: tuple[int, ...], max_binding: int) -> list[tuple[int, int]]:
    """The shards of a packed matrix, from the shape [N/4, chunks, K/32, 4] of its codes: its scales are never larger."""
    blocks, chunks, groups, _ = codes
    return row_shards(4 * blocks, chunks * groups * 4, max_binding)


def shard_bytes(codes: tuple[int, ...], part: tuple[int, ...], max_binding: int) -> list[int]:
    """The bytes of each shard of a part of that matrix (codes or scales, 4 bytes each), where the part is too large to bind."""
    if 4 * num_elements(part) <= max_binding:
        return []
    return [rows * num_elements(part[1:]) for _, rows in matrix_shards(codes, max_binding)]


def shard_rows(program: ReadProgram, max_binding: int) -> ReadProgram:
    """The program with a step for each shard of every matrix that is looked up in or multiplied with by itself."""
    steps = tuple(each for step in program.steps for each in _sharded(step, max_binding))
    return replace(program, steps=steps)


def _sharded(step: Step, max_binding: int) -> list[Step]:
    if step.op not in _MAKE:
        return [step]
    *inputs, w, ws, out = step.places
    shards = matrix_shards(w.shape, max_binding)
    if len(shards) == 1:
        return [step]
    steps = []
    for first, rows in shards:
        params, result = _MAKE[step.op](step.params, out, first, rows)
        places = (*inputs, _blocks(w, first, rows), _blocks(ws, first, rows), result)
        steps.append(Step(step.op, params, places))
    return steps


def _blocks(place: Place, first: int, rows: int) -> Place:
    """The blocks of 4 rows of a part of a packed matrix."""
    block = num_elements(place.shape[1:])
    return replace(place, first=first // 4 * block, window=(rows // 4, *place.shape[1:]))


def _embed_shard(params: dict[str, int | str], out: Place, first: int, rows: int):
    """Writes the rows of `out` whose ids it holds: the shards together write each once."""
    return {**params, "first_row": first, "rows": rows}, out


def _linear_shard(params: dict[str, int | str], out: Place, first: int, rows: int):
    """Columns first..first + rows of out [M, N]: a window from the first of row 0 to the last of row M - 1, with the stride of N."""
    m, n = int(params["m"]), int(params["n"])
    return {**params, "rows": rows}, replace(out, first=first, window=((m - 1) * n + rows,))


_MAKE = {"embed": _embed_shard, "linear": _linear_shard}


def num_elements(shape: tuple[int, ...] | list[int]) -> int:
    """The product of the sizes."""
    count = 1
    for size in shape:
        count *= size
    return count


def num_bytes(dtype: str, shape: tuple[int, ...] | list[int]) -> int:
    """What a tensor takes."""
    return DTYPE_BYTES[dtype] * num_elements(shape)
