"""Hugging Face folders: dtypes, shards, text files, and one row per thing that is refused."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from specdec_compiler.quantize import QuantWeight, quantize
from specdec_compiler.sources import Quantization, open_source
from specdec_compiler.sources.floats import to_bf16
from specdec_compiler.sources.safetensors_file import open_safetensors
from specdec_compiler.tiny import make_tiny
from specdec_runtime.faults import ArtifactError


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy of a tiny champion that a test may change."""
    make_tiny(tmp_path, seed=4, vocab=300)
    return tmp_path / "champion"


def open_folder(folder: Path):
    return open_source(folder.name, folder.parent)


def edit(path: Path, **changes) -> None:
    """Set keys of a JSON file; a value of ... removes the key."""
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))


def save(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F32") -> None:
    """Write f32 arrays as a safetensors file of the dtype."""
    convert = {"F32": lambda x: x, "F16": lambda x: x.astype(np.float16), "BF16": to_bf16}.get(
        dtype, lambda x: x
    )
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        raw = convert(values).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}  # type: ignore[dict-item]
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return {name: tensor.read() for name, tensor in open_safetensors(folder).items()}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_float_type(folder, dtype):
    values = tensors_of(folder)
    save(folder / "model.safetensors", values, dtype)
    stored = values["model.layers.1.mlp.up_proj.weight"]
    if dtype == "F16":
        stored = stored.astype(np.float16).astype(np.float32)
    found, expected = open_folder(folder).tensor("layers.1.up"), quantize(stored, "q4", "w")
    assert isinstance(found, QuantWeight)
    assert np.array_equal(found.codes, expected.codes)
    norm = open_folder(folder).tensor("norm")
    assert isinstance(norm, np.ndarray)
    assert norm.dtype == np.float32


def test_formats(folder):
    spec = open_source(folder.name, folder.parent, Quantization("q8", "q4"))
    formats = {name: w.format for name in spec.names() if isinstance(w := spec.tensor(name), QuantWeight)}
    assert {formats.pop("embed"), formats.pop("head")} == {"q4"}
    assert set(formats.values()) == {"q8"}


def test_bf16_rounding():
    values = np.array([1.0, -1.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.0e38, 1e-40, 0.0], np.float32)
    back = (to_bf16(values).astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(back[:4], np.array([1.0, -1.0, 1.0, 1 + 2**-6], np.float32))  # ties to even
    assert np.allclose(back, values, rtol=2**-8)


def test_the_name_holds_no_path_of_another_machine(folder):
    edit(folder / "config.json", _name_or_path="/home/someone/models/toy")
    assert open_folder(folder).config.name == "toy"
    edit(folder / "config.json", _name_or_path="")
    assert open_folder(folder).config.name == "champion"


def test_shards(folder):
    values = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(values)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, part in shards.items():
        save(folder / shard, {name: values[name] for name in part})
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    spec = open_folder(folder)
    assert all(spec.tensor(name) is not None for name in spec.names())

    index.write_text(json.dumps({"weight_map": {**weight_map, names[0]: "b.safetensors"}}))
    with pytest.raises(ArtifactError, match=r"missing from the shard.*b\.safetensors"):
        open_folder(folder)
    (folder / "a.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"cannot be read.*a\.safetensors"):
        open_folder(folder)
    index.write_text("{}")
    with pytest.raises(ArtifactError, match="weight_map"):
        open_folder(folder)


def test_tied_and_older_files(folder):
    """A tied head may be stored again, rope frequencies may be stored; neither changes anything."""
    values = tensors_of(folder)
    values["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    save(folder / "model.safetensors", values)
    edit(folder / "config.json", tie_word_embeddings=True)
    spec = open_folder(folder)
    assert "head" not in spec.names()
    head, embed = spec.tensor("head"), spec.tensor("embed")
    assert isinstance(head, QuantWeight)
    assert isinstance(embed, QuantWeight)
    assert np.array_equal(head.codes, embed.codes)


def test_newer_and_default_config_keys(folder):
    rope = {"rope_type": "default", "rope_theta": 12345.0}
    edit(folder / "config.json", rope_theta=..., rope_parameters=rope, head_dim=..., rope_scaling=None)
    config = open_folder(folder).config
    assert (config.rope_theta, config.head_dim) == (12345.0, 16)
    edit(folder / "config.json", rope_parameters=..., rms_norm_eps=..., max_position_embeddings=...)
    config = open_folder(folder).config
    assert (config.rope_theta, config.norm_eps, config.context) == (10000.0, 1e-6, 2048)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, r"architectures = \['Qwen2ForCausalLM'\]"),
        ({"architectures": ...}, "architectures = None"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling = .*llama3"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling = .*linear"),
        ({"rope_scaling": 2}, "rope_scaling = 2"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters = .*yarn"),
        ({"rope_interleaved": True}, "rope_interleaved = True"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_size": ...}, "hidden_size = None is not an integer"),
        ({"hidden_size": "64"}, "hidden_size = '64'"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"num_hidden_layers": 3}, r"missing.*model\.layers\.2"),
        ({"num_hidden_layers": 1}, r"no place.*model\.layers\.1"),
        ({"num_hidden_layers": 10**9}, "num_layers is 1000000000"),
        ({"vocab_size": 301}, r"shape \[300, 64\].*\[301, 64\].*embed_tokens"),
        ({"num_key_value_heads": 3}, "4 query heads do not share 3"),
        ({"head_dim": 15}, "head size 15 is odd"),
        ({"head_dim": ..., "num_attention_heads": 5}, "5 heads do not divide"),
        ({"rms_norm_eps": 0}, "norm_eps is 0"),
        ({"rope_theta": "1e4"}, "rope_theta = '1e4'"),
        ({"tie_word_embeddings": True, "intermediate_size": 64}, r"shape \[128, 64\].*\[64, 64\].*gate_proj"),
        ({"eos_token_id": 5000}, None),  # generation_config.json has the word
    ],
)
def test_config(folder, changes, message):
    edit(folder / "config.json", **changes)
    if message is None:
        assert open_folder(folder).text.eos_ids == (2,)
        return
    with pytest.raises(ArtifactError, match=message) as caught:
        open_folder(folder)
    assert caught.value.action


def test_rows_that_are_no_multiple_of_32(tmp_path):
    from specdec_compiler.tiny import TinyShape

    make_tiny(tmp_path, 0, 300, shape=TinyShape(ffn=112))
    with pytest.raises(ArtifactError, match=r"multiple of 32.*down_proj"):
        open_source("champion", tmp_path)


def test_dtypes_and_values_that_are_refused(folder):
    values = tensors_of(folder)
    values["model.layers.1.self_attn.k_proj.weight"][3, 4] = np.inf
    values["model.norm.weight"][5] = np.nan
    save(folder / "model.safetensors", values)
    spec = open_folder(folder)
    with pytest.raises(ArtifactError, match=r"\[3, 4\] is inf.*layers\.1\.self_attn\.k_proj"):
        spec.tensor("layers.1.k")
    with pytest.raises(ArtifactError, match=r"\[5\] is nan.*model\.norm"):
        spec.tensor("norm")
    save(folder / "model.safetensors", values, dtype="F64")
    with pytest.raises(ArtifactError, match=r"dtype F64.*F32, F16, BF16"):
        open_folder(folder).tensor("embed")


def test_damaged_weights(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 5, 8, 200, 5000, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ArtifactError, match=r"truncated|empty") as caught:
            open_folder(folder)
        assert "model.safetensors" in caught.value.where
    for old, new, message in [
        (b'"BF16"', b'"F32" ', "do not hold F32"),
        (b'"shape"', b'"shapo"', "record is damaged"),
        (b'"shape":[300', b'"shape":[-30', "no size|do not hold"),
        (b'{"lm_head', b'["lm_head', "not JSON"),
    ]:
        path.write_bytes(whole.replace(old, new, 1))
        assert path.read_bytes() != whole
        with pytest.raises(ArtifactError, match=message):
            open_folder(folder)
    path.unlink()
    with pytest.raises(ArtifactError, match=r"neither model.safetensors"):
        open_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, "", "[1]", "{", "\xff"])
def test_damaged_json(folder, name, content):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ArtifactError, match=name):
        open_folder(folder)


def test_text(folder):
    text = open_folder(folder).text
    assert text.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert (text.bos_id, text.add_bos, text.eos_ids, text.special_ids) == (1, False, (2,), (0, 1, 2))
    assert text.chat_template is not None
    assert text.chat_template.startswith("{% for message")
    edit(folder / "generation_config.json", eos_token_id=[2, 0])
    assert open_folder(folder).text.eos_ids == (0, 2)
    edit(folder / "generation_config.json", eos_token_id=[2, 300])
    with pytest.raises(ArtifactError, match=r"eos_token_id = 300.*generation_config"):
        open_folder(folder)
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=0)
    assert open_folder(folder).text.eos_ids == (0,)
    edit(folder / "config.json", eos_token_id=...)
    assert open_folder(folder).text.eos_ids == (2,)  # tokenizer_config.json


def test_first_token(folder):
    settings = folder / "tokenizer_config.json"
    edit(settings, bos_token={"content": "<|endoftext|>"}, add_bos_token=True)
    assert (open_folder(folder).text.bos_id, open_folder(folder).text.add_bos) == (0, True)
    edit(settings, bos_token=None)
    assert (open_folder(folder).text.bos_id, open_folder(folder).text.add_bos) == (None, False)
    edit(settings, bos_token="<nothing>")
    with pytest.raises(ArtifactError, match=r"'<nothing>' is not in tokenizer.json"):
        open_folder(folder)
    settings.unlink()
    assert (open_folder(folder).text.bos_id, open_folder(folder).text.add_bos) == (1, False)  # config.json
    single = [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "special_tokens": {"<|im_start|>": {"ids": [1]}},
    }
    for processor in (template, {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}):
        edit(folder / "tokenizer.json", post_processor=processor)
        assert open_folder(folder).text.add_bos
    template["single"] = single[1:]
    edit(folder / "tokenizer.json", post_processor=template)
    assert not open_folder(folder).text.add_bos


def test_chat_template(folder):
    settings = folder / "tokenizer_config.json"
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    edit(settings, chat_template=named)
    assert open_folder(folder).text.chat_template == "d"
    (folder / "chat_template.jinja").write_text("file")
    assert open_folder(folder).text.chat_template == "file"
    (folder / "chat_template.jinja").unlink()
    edit(settings, chat_template=...)
    assert open_folder(folder).text.chat_template is None
    edit(settings, chat_template=5)
    with pytest.raises(ArtifactError, match="chat_template is neither"):
        open_folder(folder)


def test_a_tokenizer_that_does_not_fit(folder):
    edit(folder / "tokenizer.json", added_tokens=[{"id": 300, "content": "<x>", "special": True}])
    with pytest.raises(ArtifactError, match="'<x>' has the id 300, the model has 300 rows"):
        open_folder(folder)
    edit(folder / "tokenizer.json", added_tokens=[{"content": "<x>"}])
    with pytest.raises(ArtifactError, match="added_tokens is damaged"):
        open_folder(folder)
    edit(folder / "tokenizer.json", added_tokens=None, model={"type": "Unigram", "vocab": []})
    with pytest.raises(ArtifactError, match=r"'Unigram'.*BPE"):
        open_folder(folder)


def test_a_copied_folder_is_the_same_model(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert open_folder(tmp_path / "elsewhere").config == open_folder(folder).config
