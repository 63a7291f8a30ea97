"""The champion writes: many texts at once, a finished row is given the next prompt.

Knows the network, not what the texts are for. Invariants: the same prompts, temperatures and seed give the same texts on the same
device and number of rows; temperature 0 takes the likeliest token, any other draws by Gumbel noise (argmax(logits / T + G)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from .network import KvCache, Llama

REFILL_EVERY = 32  # steps between two looks at which rows have ended
LOGIT_ROWS = 1024  # rows whose logits lie in memory at once
PREFILL_TOKENS = 1 << 17
Report = Callable[[int, int], None]  # done, total texts


@dataclass(frozen=True)
class Job:
    """One text to write: prompt ids, temperature."""

    prompt: list[int]
    temperature: float


class Writer:
    """Continues prompts until an end id, max_new tokens or max_len positions."""

    def __init__(self, net: Llama, rows: int, max_len: int, end_ids: tuple[int, ...], seed: int) -> None:
        self._net, self._rows, self._max_len = net, rows, max_len
        weight = net.weights["norm"]
        self._device, self._cuda = weight.device, weight.device.type == "cuda"
        self._cache = KvCache(net.config, rows, max_len, str(self._device), weight.dtype)
        self._end_ids = frozenset(end_ids)
        self._ends = torch.tensor(end_ids, device=self._device)
        self._ids = torch.zeros(rows, dtype=torch.long, device=self._device)
        self._at = torch.zeros(rows, dtype=torch.long, device=self._device)
        self._heat = torch.zeros(rows, device=self._device)
        self._out = torch.zeros(REFILL_EVERY, rows, dtype=torch.long, device=self._device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        torch.manual_seed(seed)

    @torch.no_grad()
    def write(self, jobs: list[Job], max_new: int, report: Report) -> Iterator[tuple[int, list[int]]]:
        """(index of the job, written ids with the end id if one came) in the order of their ends."""
        order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].prompt), reverse=True)
        owner: list[int | None] = [None] * self._rows
        texts: dict[int, list[int]] = {}
        done = 0
        while order or texts:
            free = [row for row in range(self._rows) if owner[row] is None]
            self._start(jobs, order, free, owner, texts)
            if self._cuda and not order and len(texts) < self._rows // 16:
                return  # the last stragglers would take as long as thousands of others: left unwritten
            span = self._span([len(jobs[o].prompt) + len(texts[o]) for o in owner if o is not None])
            for step in range(REFILL_EVERY):
                self._step(span)
                self._out[step] = self._ids
            written = self._out.T.tolist()
            for row, job in enumerate(owner):
                if job is None:
                    continue
                text = texts[job]
                if _extend(text, written[row], self._end_ids, max_new):
                    owner[row] = None
                    done += 1
                    yield job, texts.pop(job)
            report(done, len(jobs))

    def _start(
        self, jobs: list[Job], order: list[int], free: list[int], owner: list, texts: dict[int, list[int]]
    ) -> None:
        """Give free rows the next prompts; their first token is written here."""
        while order and free:
            longest = len(jobs[order[0]].prompt)
            count = min(len(free), len(order), max(1, PREFILL_TOKENS // longest))
            rows, taken = free[:count], order[:count]
            del free[:count], order[:count]
            prompts = [jobs[job].prompt for job in taken]
            ids = torch.zeros(count, longest, dtype=torch.long)
            for index, prompt in enumerate(prompts):
                ids[index, : len(prompt)] = torch.tensor(prompt)
            lens = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
            at = torch.tensor(rows, device=self._device)
            heat = torch.tensor([jobs[job].temperature for job in taken], device=self._device)
            hidden = self._net.prefill(ids.to(self._device), self._cache, at)
            last = hidden[torch.arange(count, device=self._device), lens - 1]
            self._ids[at], self._at[at], self._heat[at] = self._draw(last, heat), lens, heat
            for row, job, first in zip(rows, taken, self._ids[at].tolist(), strict=True):
                owner[row], texts[job] = job, [first]

    def _span(self, lens: list[int]) -> int:
        """Positions a step looks at: a multiple of 128 that the next steps do not pass."""
        return min(self._max_len, -(-(max(lens) + REFILL_EVERY) // 128) * 128)

    def _step(self, span: int) -> None:
        if not self._cuda:
            self._advance(span)
            return
        if span not in self._graphs:
            saved = self._ids.clone(), self._at.clone()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._advance(span)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._advance(span)
            self._graphs[span] = graph
            self._ids.copy_(saved[0])
            self._at.copy_(saved[1])
        self._graphs[span].replay()

    def _advance(self, span: int) -> None:
        hidden = self._net.step(self._ids, self._at, self._cache, span)
        drawn = self._draw(hidden, self._heat)
        ended = (self._ids[:, None] == self._ends).any(1)
        self._ids.copy_(torch.where(ended, self._ids, drawn))
        self._at.copy_(torch.clamp(self._at + 1, max=min(span, self._max_len) - 1))

    def _draw(self, hidden: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
        drawn = []
        for rows, warm in zip(hidden.split(LOGIT_ROWS), heat.split(LOGIT_ROWS), strict=True):
            logits = self._net.logits(rows).float()
            noise = -torch.empty_like(logits).exponential_().log()
            drawn.append((logits + noise * warm[:, None]).argmax(-1))  # the same order as logits / T + G
        return torch.cat(drawn)


def _extend(text: list[int], more: list[int], ends: frozenset[int], max_new: int) -> bool:
    """Append ids until the text has ended; whether it has."""
    if text[-1] in ends:
        return True
    for token_id in more:
        text.append(token_id)
        if token_id in ends or len(text) >= max_new:
            return True
    return False
