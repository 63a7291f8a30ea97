"""Matrices bound by rows: shards that cover each row once within the limit, windows that hold their rows, a CPU that knows of none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from draft_folders import trained_pair
from gguf_files import HEAD_DIM, HIDDEN, Types, float_weights, write_gguf
from specdec_compiler.build import build_bundle
from specdec_compiler.cli import main
from specdec_compiler.drafts.gate import Gate
from specdec_compiler.emit.rows import MAX_BINDING, ROW_STEP, row_shards
from specdec_compiler.tiny import make_tiny
from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.faults import RequestError
from specdec_runtime.plan.schema import Target, Tensor
from specdec_tools.shapes import place_weights, shape_parts

VOCAB = 517  # padded to 544
# Name -> (tied, bytes of a binding, shards). A row has 64 bytes of codes and 8 of scales: at 4,096 the scales are cut too.
CUTS = {"tied": (True, 12_300, 3), "untied": (False, 12_300, 3), "scales too": (True, 4096, 9)}
CUTS["some ids"] = (True, 12_300, 3)  # the draft's head is a matrix of its own, of 450 rows


def target_of(bundle: Bundle, name: str) -> Target:
    return next(target for target in bundle.plan.targets if target.name == name)


def weight(bundle: Bundle, target: Target, index: int) -> np.ndarray:
    """The bytes of a weight tensor."""
    tensor = target.tensors[index]
    data = b"".join(bundle.read(path) for path in target.buffers[tensor.buffer].files)
    assert len(data) == target.buffers[tensor.buffer].bytes
    return np.frombuffer(data, np.uint8, tensor.num_bytes, tensor.offset)


@pytest.fixture(scope="module", params=CUTS)
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def cut(kind) -> tuple[bool, int, int]:
    return CUTS[kind]


def build(recipe: Path, name: str, limit: int) -> Path:
    gate = Gate(recipe.parent / "strata")
    build_bundle(recipe, recipe.parent / name, lambda what, done, total: None, gate, limit)
    return recipe.parent / name


@pytest.fixture(scope="module")
def bundles(kind, cut, tmp_path_factory) -> tuple[Bundle, Bundle]:
    """In one piece, and by rows."""
    folder = tmp_path_factory.mktemp("rows")
    if kind == "some ids":
        recipe = trained_pair(folder, 4, vocab=VOCAB, tied=cut[0], vocabulary=np.arange(450))
    else:
        recipe = make_tiny(folder, 4, VOCAB, tied=cut[0])
    for name, limit in (("whole", MAX_BINDING), ("cut", cut[1])):
        build(recipe, name, limit)
    return open_bundle(folder / "whole"), open_bundle(folder / "cut")


def test_shards_cover_every_row_once() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        n, row_bytes = 32 * int(rng.integers(1, 9000)), 16 * int(rng.integers(1, 300))
        limit = int(rng.integers(ROW_STEP * row_bytes, 40 * ROW_STEP * row_bytes))
        shards = row_shards(n, row_bytes, limit)
        assert [first for first, _ in shards] == [0, *np.cumsum([rows for _, rows in shards])[:-1]]
        assert sum(rows for _, rows in shards) == n and min(rows for _, rows in shards) > 0
        assert all(first % ROW_STEP == 0 and rows * row_bytes <= limit for first, rows in shards)
        assert (len(shards) == 1) == (n * row_bytes <= limit)
    assert row_shards(262144, 640, MAX_BINDING) == [(0, 131072), (131072, 131072)]
    with pytest.raises(RequestError, match="64 rows"):
        row_shards(1000, 64, 64 * 64 - 1)


def bound(bundle: Bundle) -> dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray, Tensor]]]:
    """(program, op) -> codes, scales and result of each dispatch over a matrix of ids."""
    gpu, found = target_of(bundle, "gpu"), {}
    for program in gpu.programs:
        for dispatch in program.dispatches:
            op = gpu.kernels[dispatch.kernel].op
            if op in ("embed", "linear"):
                w, ws, out = dispatch.tensors[-3:]
                windows = (weight(bundle, gpu, w), weight(bundle, gpu, ws), gpu.tensors[out])
                found.setdefault((program.name, op), []).append(windows)
    return found


def test_windows_hold_the_rows_of_the_whole(bundles, cut) -> None:
    """A pass's windows, in order, are the bytes of the matrix; a head's results begin at its columns, an embedding's are all of x."""
    _, limit, count = cut
    whole, by_rows = (bound(bundle) for bundle in bundles)
    assert whole.keys() == by_rows.keys()
    assert (
        len(whole) == 42
    )  # 12 programs of the target and 8 of the draft with a head, and the embeddings of 2 prefills
    for (name, op), shards in by_rows.items():
        ((w, ws, out),) = whole[name, op]
        codes, scales, results = zip(*shards, strict=True)
        assert len(shards) == count and max(each.size for each in codes) <= limit
        assert np.array_equal(np.concatenate(codes), w) and np.array_equal(np.concatenate(scales), ws)
        first = (
            np.cumsum([0] + [each.size // 64 for each in codes])[:count]
            if op == "linear"
            else np.zeros(count)
        )
        assert [each.offset for each in results] == (out.offset + 4 * first).tolist()


def mixed_recipe(folder: Path, heads: int) -> Path:
    """q, k and v of two formats: each is a product of its own, into a scratch tensor of its own."""
    weights, rows = float_weights(), heads * HEAD_DIM
    rng = np.random.default_rng(0)
    weights["blk.0.attn_q.weight"] = rng.standard_normal((rows, HIDDEN)).astype(np.float32)
    weights["blk.0.attn_output.weight"] = rng.standard_normal((HIDDEN, rows)).astype(np.float32)
    types = {name: Types.Q8_0 for name, values in weights.items() if values.ndim == 2}
    types["blk.0.attn_v.weight"] = Types.Q4_1
    sizes = {"llama.attention.head_count": heads}
    sizes |= {f"llama.attention.{each}_length": HEAD_DIM for each in ("key", "value")}
    write_gguf(folder / "mixed.gguf", weights, types, sizes)
    recipe = folder / "recipe.toml"
    recipe.write_text('name = "mixed"\nlicense = "CC0-1.0"\n[champion]\nsource = "mixed.gguf"\n')
    return recipe


def test_projections_of_several_formats(tmp_path: Path) -> None:
    """A q of 128 rows, bound by 64 of them: its shards write windows of a scratch tensor."""
    recipe, rows = mixed_recipe(tmp_path, 8), 8 * HEAD_DIM
    whole, by_rows = (
        bound(open_bundle(build(recipe, name, limit)))
        for name, limit in (("whole", MAX_BINDING), ("cut", ROW_STEP * HIDDEN))
    )
    linears = [key for key in whole if key[1] == "linear"]
    assert len(linears) == 13 and whole.keys() == by_rows.keys()
    for key in linears:
        (q, q_scales, out), *_ = whole[key]
        first, second, *_ = by_rows[key]
        assert q.size == rows * HIDDEN and first[0].size == second[0].size == ROW_STEP * HIDDEN
        assert np.array_equal(np.concatenate([first[0], second[0]]), q)
        assert np.array_equal(np.concatenate([first[1], second[1]]), q_scales)
        m = out.shape[0]
        assert out.shape == (m, rows)
        assert first[2].buffer == second[2].buffer and second[2].offset == first[2].offset + 4 * ROW_STEP
        assert first[2].shape == second[2].shape == ((m - 1) * rows + ROW_STEP,)


def test_only_the_gpu_knows_of_shards(bundles, cut) -> None:
    """The CPU's programs, kernels and weights are the same; no GPU buffer of a matrix of ids is above the limit."""
    whole, by_rows = (target_of(bundle, "cpu") for bundle in bundles)
    assert whole.programs == by_rows.programs and whole.kernels == by_rows.kernels
    assert [t.name for t in whole.tensors] == [t.name for t in by_rows.tensors]
    weights = [
        i for i, tensor in enumerate(whole.tensors) if whole.buffers[tensor.buffer].lifetime == "weight"
    ]
    for index in weights:
        assert np.array_equal(weight(bundles[0], whole, index), weight(bundles[1], by_rows, index))
    gpu = target_of(bundles[1], "gpu")
    split = [buffer for buffer in gpu.buffers if buffer.name.count(".") == 2 and buffer.lifetime == "weight"]
    assert len(split) % cut[2] == 0 < len(split) and max(buffer.bytes for buffer in split) <= cut[1]
    assert whole.module == by_rows.module and bundles[0].read(whole.module) == bundles[1].read(by_rows.module)


def test_a_limit_above_every_matrix_changes_nothing(bundles) -> None:
    whole = bundles[0].folder
    same = build(whole.parent / "recipe.toml", "same", 1 << 40)
    assert (same / "plan.json").read_bytes() == (whole / "plan.json").read_bytes()
    assert (same / "kernels.wgsl").read_bytes() == (whole / "kernels.wgsl").read_bytes()


def test_the_command_says_when_a_limit_is_too_low(bundles, tmp_path: Path, capsys) -> None:
    recipe = str(bundles[0].folder.parent / "recipe.toml")
    assert main(["build", recipe, "-o", str(tmp_path / "b"), "--quiet", "--max-binding", "4000"]) == 2
    assert "--max-binding" in capsys.readouterr().err and not (tmp_path / "b").exists()


def test_known_shapes_fit_the_guaranteed_limits() -> None:
    """The 8B shape's embedding and head of 525 MB: four buffers each, with a draft whose tied table has two."""
    arenas, stored = place_weights(shape_parts("8B", 4096))
    names = {tensor.arena: tensor.name for tensor in stored}
    cut = {names[i]: len(arena.shards) for i, arena in enumerate(arenas) if arena.shards}
    assert cut == {"target.embed.w": 4, "target.head.w": 4, "draft.embed.w": 2}
    buffers = [buffer for arena in arenas for buffer in arena.shards or [arena]]
    assert max(buffer.bytes for buffer in buffers) <= MAX_BINDING
    assert all(sum(each.bytes for each in arena.shards) in (0, arena.bytes) for arena in arenas)
