"""The 200 schemas on a real model, natively: every answer is validated, or ended at the length limit.

.venv/bin/python tests/exact/grammar_on_model.py bundles/smollm2-135m [--count N] [--max-tokens N] [--temperature T]
"""

import argparse
import json
import sys
from pathlib import Path

from grammar_schemas import check, schemas
from specdec_tools.native_run import NativeRun


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a model for 200 schemas.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    counts = {"valid": 0, "length": 0, "invalid": 0}
    forced = drafted = 0
    with NativeRun.open(args.bundle) as runner:
        for number, schema in enumerate(schemas(args.count)):
            grammar = {"type": "json_schema", "schema": schema}
            ask = {"prompt": f"Write JSON of this schema: {json.dumps(schema)[:300]}", "grammar": grammar}
            ask |= {
                "max_tokens": args.max_tokens,
                "drafter": "ngram",
                "k": 4,
                "temperature": args.temperature,
                "seed": number,
            }
            result = runner.generate(ask)
            forced += result["speculation"]["num_forced"]
            drafted += result["usage"]["completion_tokens"]
            if result["finish_reason"] != "stop":
                counts["length"] += 1
                continue
            try:
                check(schema, result["text"])
                counts["valid"] += 1
            except Exception as error:  # whatever is wrong with it is to be seen
                counts["invalid"] += 1
                print(f"schema {number}: {error}\n{result['text']}", file=sys.stderr)
    print(json.dumps({**counts, "tokens": drafted, "forced": forced}))
    return int(counts["invalid"] > 0)


if __name__ == "__main__":
    sys.exit(main())
