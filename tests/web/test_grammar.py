"""web/worker/grammar.js and its Python twins on the same walks: the same engine version, drafts, forced ids and masks."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from specdec_runtime.decode.effects import Constrain, Walk
from specdec_runtime.decode.grammar import walk
from specdec_runtime.grammars import lowered
from specdec_tools.byte_map import ByteMap
from specdec_tools.grammar import Matchers
from specdec_tools.paths import ROOT
from twins import ask

sys.path.insert(0, str(Path(__file__).parents[1] / "exact"))
from grammar_schemas import schemas

STEPS = 12


def _walks(matcher, choose: random.Random, vocab_size: int) -> tuple[list[dict], list[dict]]:
    """Questions, each of which follows from the answer before, and the answers."""
    asked, answers, accepted = [], [], []
    for _ in range(STEPS):
        drafted = [choose.randrange(vocab_size) for _ in range(choose.randrange(4))]
        question = Walk(accepted, drafted, choose.randrange(8))
        walked, rows = walk(matcher, question)
        asked.append(question._asdict())
        masks = [row.tolist() for row in rows]
        answers.append({"ids": walked.ids, "forced": walked.forced, "rows": masks})
        bits = int.from_bytes(rows[0].tobytes(), "little")
        allowed = [token_id for token_id in range(vocab_size) if bits >> token_id & 1]
        accepted = [choose.choice(allowed)]
        if accepted[0] in matcher.stop_ids:
            break
    return asked, answers


def test_walks_and_masks_are_twins(fake_bundle: Path) -> None:
    tokenizer = json.loads((fake_bundle / "tokenizer.json").read_text())
    plan = json.loads((fake_bundle / "plan.json").read_text())
    vocab_size, text = plan["models"][0]["vocab_size"], plan["text"]
    hidden = [*text["special_ids"], *text["eos_ids"]]
    matchers, choose = Matchers(ByteMap(tokenizer, hidden)), random.Random(8)
    cases, expected = [], []
    for schema in schemas(30, seed=3):
        grammar = lowered({"type": "json_schema", "schema": schema})
        constrain = Constrain("ebnf", grammar, text["eos_ids"], vocab_size, (vocab_size + 31) // 32)
        walks, answers = _walks(matchers(constrain), choose, vocab_size)
        cases.append({"constrain": constrain._asdict(), "walks": walks})
        expected.append(answers)
    found = ask({"grammars": cases, "tokenizer": tokenizer, "hidden": hidden})
    assert found == expected
    assert any(answer["forced"] for answers in expected for answer in answers)


def test_the_engines_are_of_one_version() -> None:
    pinned = json.loads((ROOT / "package.json").read_text())["dependencies"]["@mlc-ai/web-xgrammar"]
    assert f"xgrammar=={pinned}\n" in (ROOT / "constraints.txt").read_text()
