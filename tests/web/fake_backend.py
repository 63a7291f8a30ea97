"""The fake model's programs in Python: a backend for the native path of the tools, and the twin of kernels.c."""

from __future__ import annotations

from typing import Any

from fake_bundle import CONTEXT, PADDED, PAGE, VOCAB, WEIGHTS, _mix, fake_next, weights
from specdec_runtime.bundle import Bundle
from specdec_runtime.decode.effects import Readback, Submit

MASK = 0xFFFFFFFF


class FakeBackend:
    """Every tensor a list; every program a method."""

    def __init__(self, bundle: Bundle) -> None:
        self.info: dict[str, Any] = {"backend": "scripted", "adapter": "python"}
        self.weights = weights()
        self.tensors: dict[str, list] = {
            "tokens": [0] * (CONTEXT + 64),
            "target.logits": [0.0] * (8 * PADDED),
        }
        self.tensors |= {"target.score_ids": [0] * 8, "target.score": [0.0] * 24, "draft.stats": [0.0] * 64}
        self.tensors["target.top"] = [0.0] * (32 * 12)
        for role in ("target", "draft"):
            pages = CONTEXT // PAGE
            self.tensors |= {
                f"{role}.args": [0] * 4,
                f"{role}.page_table": [0] * pages,
                f"{role}.out": [0] * 64,
            }
            self.tensors[f"{role}.kv"] = [0] * CONTEXT

    def submit(self, batch: Submit) -> Readback:
        for name, offset, values in batch.writes:
            self.tensors[name][offset : offset + len(values)] = values
        for call in batch.calls:
            role, program = call.split(".")
            self._run(role, program.split("_")[0])
        values = [self.tensors[name][offset : offset + count] for name, offset, count in batch.reads]
        return Readback(values, [0.0] * len(batch.calls))

    def close(self) -> None:
        self.tensors.clear()

    def _slot(self, role: str, position: int) -> int:
        return self.tensors[f"{role}.page_table"][position // PAGE] * PAGE + position % PAGE

    def _append(self, role: str, position: int) -> int:
        kv, token = self.tensors[f"{role}.kv"], self.tensors["tokens"][position]
        before = kv[self._slot(role, position - 1)] if position else 0x9E3779B9
        kv[self._slot(role, position)] = _mix((before + self.weights[token * 13 % WEIGHTS] + token) & MASK)
        return kv[self._slot(role, position)]

    def _run(self, role: str, program: str) -> None:
        args = self.tensors[f"{role}.args"]
        if program == "score":
            return self._score(args[1])
        if program == "accept":
            return self._accept()
        if program == "logprobs":
            return self._logprobs(*args)
        for row in range(args[1]):
            h = self._append(role, args[0] + row)
            if program == "measure":
                doubt = 2.0 if h >> 20 & 3 == 0 else ((h >> 22 & 7) + 1) / 8
                at = 2 * (args[3] + row)
                self.tensors["draft.stats"][at : at + 2] = [-doubt, 2 * doubt]
            if program != "prefill":
                self._answer(role, row, h, self.tensors["tokens"][args[0] + row])
        if program != "prefill" and args[2]:
            start, rows, _, first = args
            self.tensors["tokens"][start + rows] = self.tensors[f"{role}.out"][2 * (first + rows - 1)]
            args[:] = start + rows, 1, 1, first + rows
        return None

    def _answer(self, role: str, row: int, h: int, token: int) -> None:
        made = fake_next(h, token)
        if role == "draft":
            made = ord("x") if h >> 20 & 3 == 0 else made
        else:
            line = [float(_mix(h ^ v) >> 16) / 65536 for v in range(VOCAB)]
            line[made] = 4.0
            self.tensors["target.logits"][row * PADDED : row * PADDED + VOCAB] = line
        at = 2 * (self.tensors[f"{role}.args"][3] + row)
        self.tensors[f"{role}.out"][at : at + 2] = [made, 1]

    def _accept(self) -> None:
        (start, rows, _, first), tokens = self.tensors["target.args"], self.tensors["tokens"]
        said = self.tensors["target.out"][2 * first : 2 * (first + rows) : 2]
        row = 0
        while row < rows - 1 and said[row] == tokens[start + row + 1]:
            row += 1
        tokens[start + row + 1] = said[row]
        self.tensors["draft.args"][:2] = start + row, 2
        self.tensors["target.args"][:] = start + row + 1, rows, 0, first + rows

    def _logprobs(self, start: int, rows: int, feedback: int, first: int) -> None:
        for row in range(rows):
            line = self.tensors["target.logits"][row * PADDED : row * PADDED + VOCAB]
            at = first + row - (feedback == 1)
            likeliest = sorted(range(VOCAB), key=lambda v: -line[v])[:5]
            pairs = [number for v in likeliest for number in (float(v), line[v] - line[likeliest[0]])]
            given = line[self.tensors["target.out"][2 * at]] - line[likeliest[0]]
            self.tensors["target.top"][12 * at : 12 * at + 12] = [given, 0.0, *pairs]

    def _score(self, rows: int) -> None:
        for row in range(rows):
            line = self.tensors["target.logits"][row * PADDED : row * PADDED + VOCAB]
            first, second = sorted(line, reverse=True)[:2]
            wanted = line[self.tensors["target.score_ids"][row]]
            self.tensors["target.score"][3 * row : 3 * row + 3] = [first - second, wanted - first, first]
