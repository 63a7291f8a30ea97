"""Makes the model builder's graph loadable by transformers.js: `python fix_graph.py IN.onnx OUT.onnx HEAD_DIM`.

Runs in the exporter's environment: knows onnx and nothing of ours. The builder leaves the KV cache's last extent a name, which
transformers.js reads as 0 for the empty cache; and transformers.js looks for NAME.onnx_data where the builder writes NAME.onnx.data.
"""

import sys
from pathlib import Path

import onnx  # pyright: ignore[reportMissingImports]


def main(source: str, target: str, head_dim: int) -> None:
    model = onnx.load(source, load_external_data=False)
    changed = 0
    for value in [*model.graph.input, *model.graph.output]:
        if value.name.startswith(("past_key_values.", "present.")):
            value.type.tensor_type.shape.dim[3].dim_value = head_dim
            changed += 1
    if changed == 0:
        sys.exit("the graph has no KV cache")
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = Path(target).name + "_data"
    onnx.save(model, target)
    Path(source + ".data").rename(target + "_data")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
