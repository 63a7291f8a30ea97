"""Row bits do not depend on how they were computed: any width, prefill or verify, any chunking, give equal logits and equal KV."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from runs import Native, random_prompt
from specdec_runtime.decode.effects import Submit


def _reset(native: Native, ids: list[int]) -> None:
    pages = native.bundle.plan.target_model.num_pages
    native.backend.submit(
        Submit("verify", [("tokens", 0, ids), ("target.page_table", 0, list(range(pages)))], [], [])
    )


def _pass(native: Native, program: str, start: int, rows: int) -> None:
    native.backend.submit(Submit("verify", [("target.args", 0, [start, rows, 0, 0])], [program], []))


def _logits(native: Native, rows: int) -> list[str]:
    model = native.bundle.plan.target_model
    view = np.array(native.backend.view("target.logits"), np.float32).reshape(8, model.padded_vocab)
    return [hashlib.sha256(row[: model.vocab_size].tobytes()).hexdigest() for row in view[:rows]]


def _kv(native: Native, length: int) -> str:
    """Hash of every K and V element of the first `length` positions (pages are in identity order)."""
    model, digest = native.bundle.plan.target_model, hashlib.sha256()
    shape = (model.num_pages, model.num_kv_heads)
    for layer in range(model.num_layers):
        k = np.array(native.backend.view(f"target.k.{layer}")).reshape(
            *shape, model.head_dim, model.page_size
        )
        v = np.array(native.backend.view(f"target.v.{layer}")).reshape(
            *shape, model.page_size, model.head_dim
        )
        for position in range(length):
            page, slot = divmod(position, model.page_size)
            digest.update(k[page, :, :, slot].tobytes())
            digest.update(v[page, :, slot, :].tobytes())
    return digest.hexdigest()


def _walk(native: Native, ids: list[int], chunks: list[tuple[str, int]]) -> tuple[list[str], str]:
    """Run chunks of (program, rows) over ids; logits hashes of every row that had a head, and the KV hash."""
    _reset(native, ids)
    at, hashes = 0, []
    for program, rows in chunks:
        rows = min(rows, len(ids) - at)
        if rows <= 0:
            break
        _pass(native, program, at, rows)
        if "prefill" not in program:
            hashes += [f"{at + i}:{h}" for i, h in enumerate(_logits(native, rows))]
        at += rows
    assert at == len(ids)
    return hashes, _kv(native, len(ids))


def _check_all_ways(native: Native, ids: list[int]) -> None:
    one, kv = _walk(native, ids, [("target.verify_1", 1)] * len(ids))
    for width in (2, 4, 8):
        for rows in range(1, width + 1):  # narrower passes in the wide program too
            got = _walk(native, ids, [(f"target.verify_{width}", rows)] * len(ids))
            assert got == (one, kv), (width, rows)
    head = len(ids) - 5
    chunks = [("target.prefill", 32)] * (head // 32) + [("target.prefill", head % 32)] * (head % 32 > 0)
    tail, prefilled = _walk(native, ids, [*chunks, ("target.verify_8", 8)])
    assert tail == one[head:] and prefilled == kv


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_tiny(tiny_bundle, seed: int) -> None:
    vocab = (301, 384, 517, 1000)[seed]
    ids = (random_prompt(seed, vocab) * 40)[:90]
    _check_all_ways(Native(tiny_bundle(seed, vocab)), ids)


def test_tiny_across_the_attention_split(tiny_bundle) -> None:
    """Positions 250 to 262, where a second split of 256 begins."""
    native = Native(tiny_bundle(1, 384))
    ids = (random_prompt(5, 384) * 100)[:262]
    start = 250
    prefix = [("target.prefill", 32)] * 7 + [("target.prefill", start - 224)]
    one, kv = _walk(native, ids, [*prefix, *[("target.verify_1", 1)] * 12])
    for width in (2, 4, 8):
        assert _walk(native, ids, [*prefix, *[(f"target.verify_{width}", width)] * 12]) == (one, kv), width


@pytest.mark.model
def test_real_model(smollm2_bundle) -> None:
    native = Native(smollm2_bundle)
    ids = (random_prompt(11, native.bundle.plan.target_model.vocab_size) * 40)[:40]
    _check_all_ways(native, ids)
