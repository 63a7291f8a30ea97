"""llama.cpp's side: `python llama_runner.py GGUF CONTEXT THREADS`; a line of JSON in, a line out. Runs in the peer's own environment.

In: {"prompt_ids": [...], "tokens": N}. Out: {"ids", "first", "first_ms", "total_ms"}, as web/bench/sides.js measures. The
first line out says that the model is loaded. Invariant: each request starts from an empty KV cache.
"""

import itertools
import json
import sys
import time

import llama_cpp  # pyright: ignore[reportMissingImports]


def main(path: str, context: int, threads: int) -> None:
    model = llama_cpp.Llama(path, n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False)
    features = llama_cpp.llama_print_system_info().decode()
    print(json.dumps({"version": llama_cpp.__version__, "features": features}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        model.reset()
        began = time.perf_counter()
        ids, first_ms = [], 0.0
        for token in itertools.islice(model.generate(request["prompt_ids"], temp=0.0), request["tokens"]):
            first_ms = first_ms or (time.perf_counter() - began) * 1000
            ids.append(token)
            if token == model.token_eos():
                break
        total_ms = (time.perf_counter() - began) * 1000
        print(json.dumps({"ids": ids, "first": 1, "first_ms": first_ms, "total_ms": total_ms}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
