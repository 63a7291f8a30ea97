"""A byte-level BPE tokenizer of any size from 259 to 1,000 ids, trained on the little text below.

Knows nothing of weights. Invariants: no randomness, so a size always gives the same bytes; the first three
ids are <|endoftext|>, <|im_start|> and <|im_end|>, then the 256 bytes, then the merges by rank; a smaller
tokenizer's pieces are the first of a larger one's.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise

from specdec_runtime.faults import RequestError

from .sources.tokenizer import PRE_TOKENIZERS, tokenizer_json

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MIN_VOCAB, MAX_VOCAB = len(SPECIAL) + 256, 1000
_CONTROL, _NORMAL = 3, 1  # token types of GGUF, which tokenizer_json speaks

_TEXT = """
The keeper of the lighthouse wrote every evening in a book that nobody else would ever read. She noted the
wind, the height of the waves, the ships that passed and the names painted on their sides. When the weather
was calm she drew birds in the margin: gulls, terns, cormorants, once a tired owl that had lost its way over
the water. Her brother, who brought flour, oil and letters on the first Monday of each month, said the work
was useless because the harbour office kept better records. She answered that records and remembering are
different things, and filled the lamp again. In the winter of that year a storm broke two windows and the
stairs were covered with glass. She swept them before breakfast, measured the frames, and asked for new panes
with the next boat. None came until spring. Meanwhile the light burned behind boards, and three captains
reported that they had seen it anyway, low and yellow like a candle in a kitchen. After the thaw an engineer
arrived to explain that a machine could turn the lens, count the hours and call the office by itself. He was
polite, drank two cups of tea, looked at the drawings and stayed longer than he had planned. Before leaving he
promised to send paper. It came in June, a thousand sheets wrapped in cloth, with a note: please keep writing,
someone should. What is a good question? One whose answer changes what you do next. How does a compiler help?
It reads a program, finds the parts that can be made simpler, and writes the same meaning in another language.
Why must the result be exact? Because people build upon it without looking again. Can you give an example?
Yes: if the function returns a number for every list, then an empty list needs an answer too. Let x be the
value and y the limit; while x is smaller than y, add one to x, otherwise stop. Try to test small things
often, large things sometimes, and strange things always. def main(args): for item in range(10): print(item,
end=" ") return None if not args else args[0] You are a helpful assistant. User: hello, how are you today?
Assistant: I'm fine, thank you. Could you tell me about music, history, science, cooking, travel or sports?
Mix butter, sugar and eggs; bake for forty minutes; serve warm.
"""


@lru_cache(maxsize=8)
def tiny_tokenizer(vocab: int) -> bytes:
    """The tokenizer.json with exactly `vocab` ids. Raises RequestError outside 259..1000."""
    if not MIN_VOCAB <= vocab <= MAX_VOCAB:
        message = f"a vocabulary of {vocab} ids is not possible"
        raise RequestError(message, "tiny: vocab", f"give a number from {MIN_VOCAB} to {MAX_VOCAB}")
    merges = _merges()[: vocab - MIN_VOCAB]
    tokens = [*SPECIAL, *byte_letters(), *(left + right for left, right in merges)]
    types = [_CONTROL] * len(SPECIAL) + [_NORMAL] * (vocab - len(SPECIAL))
    return tokenizer_json(tokens, types, merges, PRE_TOKENIZERS["smollm"])


def byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte: itself where it prints, else one from U+0100
    on."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in prints]
    return [chr(byte) if byte in prints else chr(0x100 + others.index(byte)) for byte in range(256)]


@lru_cache(maxsize=1)
def _merges() -> list[tuple[str, str]]:
    """All merges that the largest vocabulary needs: the most frequent pair first, ties to the lesser pair."""
    letters = byte_letters()
    pieces = re.findall(r"'[a-z]+| ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+", _TEXT.replace("\n", " "))
    counts = Counter(pieces)
    words = {word: [letters[byte] for byte in word.encode()] for word in counts}
    # Which words hold a pair: only those change when it is merged.
    holders: dict[tuple[str, str], set[str]] = {}
    totals: Counter[tuple[str, str]] = Counter()
    for word, symbols in words.items():
        for pair in pairwise(symbols):
            totals[pair] += counts[word]
            holders.setdefault(pair, set()).add(word)
    merges: list[tuple[str, str]] = []
    made = set(letters)
    while len(merges) < MAX_VOCAB - MIN_VOCAB:
        best = min(totals, key=lambda pair: (-totals[pair], pair))
        for word in sorted(holders.pop(best)):
            for pair in pairwise(words[word]):
                totals[pair] -= counts[word]
            words[word] = _join(words[word], best)
            for pair in pairwise(words[word]):
                totals[pair] += counts[word]
                holders.setdefault(pair, set()).add(word)
        del totals[best]
        if "".join(best) not in made:  # two ways to one piece: the second would give its id again
            made.add("".join(best))
            merges.append(best)
    return merges


def _join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    i = 0
    while i < len(symbols):
        joined = tuple(symbols[i : i + 2]) == pair
        out.append(symbols[i] + symbols[i + 1] if joined else symbols[i])
        i += 2 if joined else 1
    return out
