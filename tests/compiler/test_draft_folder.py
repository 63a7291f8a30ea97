"""Draft folders: packed matrices come back to the bit, reach the bundle as they are, and whatever is wrong is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from draft_folders import OWN_SIZES, champion_layers, random_layers, trained_pair
from specdec_compiler.build import build_bundle, open_models
from specdec_compiler.drafts import write_draft_folder
from specdec_compiler.drafts.gate import Gate
from specdec_compiler.inspect import render, summary
from specdec_compiler.quantize import QuantWeight, dequantize, unpack_q8
from specdec_compiler.recipe import read_recipe
from specdec_compiler.sources import open_draft, open_source
from specdec_compiler.sources.packed import Formats, pack_floats, packed_values
from specdec_compiler.sources.safetensors_file import read_safetensors, safetensors_bytes
from specdec_compiler.tiny import make_tiny
from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.faults import ArtifactError

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@pytest.mark.parametrize(
    "formats", [Formats("q8"), Formats("q4"), Formats("q8", "q4"), Formats("q4", "q8")], ids=str
)
def test_what_is_written_is_what_is_read(tmp_path, formats) -> None:
    recipe = read_recipe(trained_pair(tmp_path, formats=formats))
    draft = open_models(recipe).draft
    assert draft is not None
    _, tensors = champion_layers(tmp_path / "champion")
    for layer in range(2):
        for part in MATRICES:
            stored = (
                f"model.layers.{layer}.{'mlp' if part in ('gate', 'up', 'down') else 'self_attn'}.{part}_proj"
            )
            format = (formats.feed_forward or formats.matrices) if "mlp" in stored else formats.matrices
            wanted = pack_floats(tensors[stored + ".weight"], format, "test")
            found = draft.tensor(f"layers.{layer}.{part}")
            assert isinstance(found, QuantWeight) and found.format == format
            np.testing.assert_array_equal(found.codes, wanted.codes)
            np.testing.assert_array_equal(found.scale, wanted.scale)
            if found.minimum is not None:
                np.testing.assert_array_equal(found.minimum, wanted.minimum)
    np.testing.assert_array_equal(draft.tensor("norm"), tensors["model.norm.weight"])


@pytest.mark.parametrize(("format", "limit"), [("q8", 0.009), ("q4", 0.09)])
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e-6])
def test_packing_stays_close(format, limit, size) -> None:
    """The error is that of the format, also where f16 scales have few digits left."""
    values = (np.random.default_rng(1).standard_normal((8, 64)) * size).astype(np.float32)
    values[0] = 0
    error = np.abs(packed_values(values, format) - values).max() / np.abs(values).max()
    assert error <= (limit if size > 1e-6 else 0.5)
    assert not packed_values(values, format)[0].any()


def test_the_largest_weight_of_a_tiny_group_is_not_cut_off() -> None:
    values = np.full((1, 32), 1.43e-5, np.float32)  # scale 1.126e-7 lies between two f16 numbers
    found = pack_floats(values, "q8", "test")
    np.testing.assert_allclose(dequantize(found), values, rtol=0.5 * float(found.scale[0, 0]) / 1.43e-5)


def test_packed_values_reach_the_bundle_as_they_are(tmp_path) -> None:
    build_bundle(trained_pair(tmp_path), tmp_path / "bundle", lambda *_: None, Gate(tmp_path / "strata"))
    bundle = open_bundle(tmp_path / "bundle")
    stored = read_safetensors(tmp_path / "trained" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj"
    words, scales = weight(bundle, "draft.layers.1.down.w"), weight(bundle, "draft.layers.1.down.ws")
    # The inverse of emit/weights.py: bytes 0 4 1 5 | 2 6 3 7 of every eight k, chunks before groups.
    eights = words.swapaxes(1, 2).copy().view(np.int8).reshape(*scales.shape[:1], -1, 4, 2, 4, 4)
    eights = eights.swapaxes(3, 4).reshape(len(words), -1, 4, 4, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    natural = eights.reshape(len(words), -1, 4, 4, 2, 4).swapaxes(3, 4).reshape(len(words), -1, 8, 4, 4)
    found = unpack_q8({"w": natural, "s": scales[:, 0]}, 64)
    np.testing.assert_array_equal(found.codes, stored[name + ".q8"].raw.view(np.int8).reshape(64, 128))
    np.testing.assert_array_equal(found.scale, stored[name + ".scale"].read())


def weight(bundle: Bundle, name: str) -> np.ndarray:
    """A weight tensor of the cpu's plan."""
    target = bundle.plan.targets[0]
    tensor = next(t for t in target.tensors if t.name == name)
    data = b"".join(bundle.read(path) for path in target.buffers[tensor.buffer].files)
    dtype = np.dtype(tensor.dtype).newbyteorder("<")
    return np.frombuffer(data, dtype, int(np.prod(tensor.shape)), tensor.offset).reshape(tensor.shape)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sizes", [None, OWN_SIZES])
def test_both_models_bind_the_champions_tables(tmp_path, tied, sizes) -> None:
    recipe = trained_pair(tmp_path, tied=tied, sizes=sizes)
    build_bundle(recipe, tmp_path / "bundle", lambda *_: None, Gate(tmp_path / "strata"))
    bundle = open_bundle(tmp_path / "bundle")
    tables = {"embed", *(() if tied else ("head",)), *(("rope",) if sizes is None else ())}
    for target in bundle.plan.targets:
        names = {tensor.name for tensor in target.tensors}
        for table in ("embed.w", "embed.ws", "head.w", "head.ws"):
            assert f"draft.{table}" not in names, "a second copy of the weights"
        assert ("draft.rope" in names) == (sizes is not None), "angles are stored where they differ"
        used = {
            target.tensors[i].name
            for program in target.programs
            if program.model == "draft"
            for dispatch in program.dispatches
            for i in dispatch.tensors
            if target.buffers[target.tensors[i].buffer].lifetime == "weight"
        }
        weights = {name.split(".")[1] for name in used if name.startswith("target.")}
        weights -= {"args", "out"}  # what draft.accept reads and writes
        assert weights == tables
    facts = summary(bundle)
    assert facts["borrowed"] == sorted(tables)
    text = render(facts)
    assert f"draft uses the champion's {', '.join(sorted(tables))}" in text
    assert "draft is proven" in text


def test_floats_over_the_champions_embedding_become_q8(tmp_path) -> None:
    trained_pair(tmp_path)
    config, tensors = champion_layers(tmp_path / "champion")
    (tmp_path / "trained" / "config.json").write_text(json.dumps(config))
    data = safetensors_bytes({name: ("F32", values) for name, values in tensors.items()})
    (tmp_path / "trained" / "model.safetensors").write_bytes(data)
    draft = open_draft("trained", tmp_path, open_source("champion", tmp_path))
    found = draft.tensor("layers.0.q")
    assert isinstance(found, QuantWeight) and found.format == "q8"


def test_a_packed_folder_with_tables_of_its_own(tmp_path) -> None:
    """Packed matrices do not need the champion's embedding: with tables and a tokenizer the folder is a model."""
    make_tiny(tmp_path, 1)
    champion = tmp_path / "champion"
    config, tensors = champion_layers(champion)
    tensors["model.embed_tokens.weight"] = read_safetensors(champion / "model.safetensors")[
        "model.embed_tokens.weight"
    ].read()
    write_draft_folder(tmp_path / "own", config, tensors)
    (tmp_path / "own" / "tokenizer.json").write_bytes((champion / "tokenizer.json").read_bytes())
    found = open_source("own", tmp_path).tensor("embed")
    assert isinstance(found, QuantWeight)
    wanted = pack_floats(tensors["model.embed_tokens.weight"], "q8", "test")
    np.testing.assert_array_equal(found.codes, wanted.codes)


def test_a_head_of_some_ids_holds_those_rows_of_the_champions(tmp_path) -> None:
    ids = np.array([0, 2, 5, 6, 100, 383])
    recipe = trained_pair(tmp_path, tied=True, vocabulary=ids)
    models = open_models(read_recipe(recipe))
    assert models.draft is not None and models.borrowed == ("embed", "rope")
    head, table = models.draft.tensor("head"), models.champion.tensor("head")
    assert isinstance(head, QuantWeight) and isinstance(table, QuantWeight)
    np.testing.assert_array_equal(head.codes, table.codes[ids])
    np.testing.assert_array_equal(head.scale, table.scale[ids])
    build_bundle(recipe, tmp_path / "bundle", lambda *_: None, Gate(tmp_path / "strata"))
    bundle = open_bundle(tmp_path / "bundle")
    np.testing.assert_array_equal(weight(bundle, "draft.vocabulary"), ids)
    assert weight(bundle, "draft.head.w").shape[0] == 32 // 4  # six rows, padded
    text = render(summary(bundle))
    assert "draft proposes 6 of the ids only" in text and "draft uses the champion's embed, rope" in text


@pytest.mark.parametrize("ids", [[3, 3, 4], [4, 3], [-1, 2], [0, 384], [], [[1, 2]], [0.5, 1]])
def test_a_vocabulary_that_does_not_ascend(tmp_path, ids) -> None:
    make_tiny(tmp_path, 1)
    config, tensors = champion_layers(tmp_path / "champion")
    with pytest.raises(ArtifactError, match="draft_vocabulary"):
        write_draft_folder(tmp_path / "out", config, tensors, vocabulary=np.array(ids))


def refused(folder: Path) -> str:
    with pytest.raises(ArtifactError) as error:
        open_models(read_recipe(folder / "recipe.toml"))
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"specdec_format": {"version": 1, "matrices": "q3"}}, "matrices = 'q3' is no known format"),
        (
            {"specdec_format": {"version": 1, "matrices": "q8", "feed_forward": "q2"}},
            "feed_forward = 'q2' is no known",
        ),
        (
            {"specdec_format": {"version": 1, "matrices": "q8", "feed_forward": "q4"}},
            "the q4 part of .*gate_proj.weight is missing",
        ),
        ({"specdec_format": {"version": 2, "matrices": "q8"}}, "version = 2 is not one"),
        ({"specdec_format": {"version": 1, "matrices": "q8", "group": 32}}, "not of the keys"),
        ({"specdec_format": "q8"}, "not of the keys"),
        ({"specdec_format": {"version": 1, "matrices": "q4"}}, "the q4 part of .*q_proj.weight is missing"),
        ({"hidden_size": 96}, "hidden_size is 96, the champion's is 64"),
        ({"vocab_size": 383}, "vocab_size is 383, the champion's is 384"),
        ({"max_position_embeddings": 256}, "the draft has 256 positions"),
        ({"num_hidden_layers": 3}, "layers.2.input_layernorm.weight"),
        ({"intermediate_size": 96}, r"gate_proj.weight needs I8 \[96, 64\]"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM.*not supported"),
    ],
)
def test_a_wrong_config_is_named(tmp_path, changes, found) -> None:
    trained_pair(tmp_path)
    path = tmp_path / "trained" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    message = refused(tmp_path)
    assert re.search(found, message), message


Q = "model.layers.0.self_attn.q_proj"


def spoiled(tmp_path: Path, change) -> str:
    """What is said of a folder whose tensors `change` has edited."""
    trained_pair(tmp_path)
    path = tmp_path / "trained" / "model.safetensors"
    tensors = {
        name: (
            t.dtype,
            t.raw.copy().view({"I8": "i1", "U8": "u1", "F16": "<f2", "F32": "<f4"}[t.dtype]).reshape(t.shape),
        )
        for name, t in read_safetensors(path).items()
    }
    change(tensors)
    data = safetensors_bytes(tensors)
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as error:
        models = open_models(read_recipe(tmp_path / "recipe.toml"))
        assert models.draft is not None
        for name in models.draft.names():
            models.draft.tensor(name)
    return str(error.value)


def test_wrong_tensors_are_named(tmp_path) -> None:
    def set_to(name, dtype, values):
        return lambda tensors: tensors.__setitem__(name, (dtype, values))

    def not_finite(tensors):
        tensors[Q + ".scale"][1][3, 1] = np.inf

    cases = [
        (lambda t: t.pop(Q + ".scale"), "the scale part of " + Q + ".weight is missing"),
        (lambda t: t.pop(Q + ".q8"), "the q8 part of " + Q + ".weight is missing"),
        (lambda t: t.pop("model.norm.weight"), "the tensor is missing"),
        (set_to(Q + ".scale", "F16", np.zeros((64, 1), "<f2")), "is F16 [64, 1]"),
        (set_to(Q + ".scale", "F32", np.zeros((64, 2), "<f4")), "is F32 [64, 2]"),
        (set_to(Q + ".q8", "U8", np.zeros((64, 64), "u1")), "is U8 [64, 64]"),
        (set_to(Q + ".q8", "I8", np.zeros((64, 32), "i1")), "is I8 [64, 32]"),
        (set_to(Q + ".minimum", "F16", np.zeros((64, 2), "<f2")), "no place"),
        (set_to(Q + ".weight", "F32", np.zeros((64, 64), "<f4")), "no place"),
        (set_to("model.embed_tokens.weight", "F32", np.zeros((384, 64), "<f4")), "no place"),
        (set_to("lm_head.weight", "F32", np.zeros((384, 64), "<f4")), "no place"),
        (set_to("draft_vocabulary", "I32", np.array([1, 2], "<i4")), "no place"),
        (not_finite, "the scale at [3, 1] is inf"),
    ]
    for number, (change, found) in enumerate(cases):
        message = spoiled(tmp_path / str(number), change)
        assert found in message, (number, message)


def test_a_wrong_vocabulary_is_named(tmp_path) -> None:
    def said(change, **config) -> str:
        trained_pair(tmp_path, vocabulary=np.array([1, 2, 7]))
        path = tmp_path / "trained" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        path = tmp_path / "trained" / "model.safetensors"
        kinds = {"I8": "i1", "F16": "<f2", "F32": "<f4", "I32": "<i4"}
        tensors = {
            name: (t.dtype, t.raw.copy().view(kinds[t.dtype]).reshape(t.shape))
            for name, t in read_safetensors(path).items()
        }
        tensors["draft_vocabulary"] = change
        path.unlink()
        path.write_bytes(safetensors_bytes(tensors))
        with pytest.raises(ArtifactError) as error:
            models = open_models(read_recipe(tmp_path / "recipe.toml"))
            assert models.draft is not None
            models.draft.tensor("head")
        return str(error.value)

    assert "do not ascend" in said(("I32", np.array([1, 7, 2], "<i4")))
    assert "do not ascend" in said(("I32", np.array([-1, 2, 7], "<i4")))
    assert "the id 384 is outside" in said(("I32", np.array([1, 2, 384], "<i4")))
    assert "is F32, not I32" in said(("F32", np.array([1, 2, 7], "<f4")))
    assert "shape [2]" in said(("I32", np.array([1, 2], "<i4")))
    assert "draft_vocabulary_size is 400" in said(
        ("I32", np.arange(400, dtype="<i4")), draft_vocabulary_size=400
    )


def test_a_champion_of_a_file_is_no_draft_folder(tmp_path) -> None:
    trained_pair(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    text = (tmp_path / "recipe.toml").read_text().replace('source = "trained"', 'source = "x.gguf"')
    (tmp_path / "recipe.toml").write_text(text)
    assert "x.gguf is no folder" in refused(tmp_path)


def test_the_writer_refuses(tmp_path) -> None:
    make_tiny(tmp_path, 1)
    config, _ = champion_layers(tmp_path / "champion")
    config |= OWN_SIZES
    name = "model.layers.0.mlp.up_proj.weight"

    def refusal(change, **sizes) -> str:
        tensors = random_layers(config, 1)
        change(tensors)
        with pytest.raises(ArtifactError) as error:
            write_draft_folder(tmp_path / "out", config | sizes, tensors)
        assert not (tmp_path / "out").exists()
        return str(error.value)

    assert "missing" in refusal(lambda t: t.pop(name))
    assert "no place" in refusal(lambda t: t.update(bias=np.zeros(3, np.float32)))
    assert "float64" in refusal(lambda t: t.update({name: t[name].astype(np.float64)}))
    assert "[96, 63]" in refusal(lambda t: t.update({name: t[name][:, :63]}))
    assert "nan" in refusal(lambda t: t[name].__setitem__((0, 0), np.nan))
    assert "beyond f16" in refusal(lambda t: t[name].__setitem__((0, 0), 1e8))
    assert "rope_theta" in refusal(lambda t: None, rope_theta="high")
    write_draft_folder(tmp_path / "out", config, random_layers(config, 1))
    first = (tmp_path / "out" / "model.safetensors").read_bytes()
    write_draft_folder(tmp_path / "out", config, random_layers(config, 1))
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == first
