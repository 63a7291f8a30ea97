"""Real kernels: what a session keeps has the bits of a cold run's KV, in both models, and the answers have its ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runs import Native, random_prompt, vocab_for
from specdec_runtime import drive
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.decode.session import Memory
from specdec_runtime.drafters.registry import make_drafter

SETTINGS = [
    ("off", 0, 1, 1),
    ("off", 0, 1, 4),
    ("ngram", 4, 1, 1),
    ("model", 3, 1, 1),
    ("model", 7, 4, 1),
    ("chain", 4, 2, 1),
]


class Device:
    """A bundle on this CPU, with what it keeps."""

    def __init__(self, native: Native) -> None:
        self.native, self.plan = native, native.bundle.plan
        self.memory = Memory(self.plan)

    def ask(
        self,
        prompt: list[int],
        session: str | None,
        max_tokens: int,
        setting=SETTINGS[0],
        cancel_at: int | None = None,
    ) -> dict:
        drafter, k, rounds, steps = setting
        request = Request(prompt, max_tokens, k, (), steps, rounds, session=session)
        effects = decode(self.plan, request, make_drafter(drafter, self.plan), memory=self.memory)
        calls = iter(range(10**6))
        return drive.run(effects, self.native.backend, should_cancel=lambda: next(calls) == cancel_at)

    def kv(self, session: str, role: str) -> list[bytes]:
        """K and V of each position that the session holds, all layers."""
        model = next(model for model in self.plan.models if model.role == role)
        table = self.memory._sessions[session].tables[role]
        shape = (model.num_pages, model.num_kv_heads)
        layers = []
        for layer in range(model.num_layers):
            k = np.array(self.native.backend.view(f"{role}.k.{layer}")).reshape(
                *shape, model.head_dim, model.page_size
            )
            v = np.array(self.native.backend.view(f"{role}.v.{layer}")).reshape(
                *shape, model.page_size, model.head_dim
            )
            layers.append((k, v))
        found = []
        for position in range(table.length):
            logical, slot = divmod(position, model.page_size)
            page = table.pages[logical]
            found.append(
                b"".join(k[page, :, :, slot].tobytes() + v[page, :, slot, :].tobytes() for k, v in layers)
            )
        return found

    def cold_kv(self, ids: list[int]) -> dict[str, list[bytes]]:
        """The same for ids that one request has prefilled, into a memory of its own; the device's is forgotten."""
        self.memory = Memory(self.plan)
        self.ask([*ids, 0], "cold", 4, ("model", 1, 1, 1))
        return {role: self.kv("cold", role) for role in ("target", "draft")}


def check_conversation(native: Native, prompt: list[int], tail: list[int], setting, max_tokens: int) -> None:
    """A turn, a cancelled one, a follow-up, a branch that shares pages, an edit within them, and the first again."""
    device = Device(native)
    first = device.ask(prompt, "a", max_tokens, setting)
    history = prompt + first["token_ids"]
    device.ask([*history, *tail], "a", max_tokens, setting, cancel_at=3)
    turns = [
        ("a", [*history, *tail]),
        ("b", [*history, *tail[::-1]]),
        ("b", [*history[: len(history) // 2], *tail]),
        ("a", [*history, *tail, tail[0]]),
        ("a", history[: 2 * len(prompt) // 3]),
    ]
    answers, kept = [], {}
    for session, ids in turns:
        answers.append(device.ask(ids, session, max_tokens, setting))
        if session == "a":
            held = device.memory._sessions[session]
            kept[len(answers) - 1] = (
                list(held.ids),
                {role: device.kv(session, role) for role in ("target", "draft")},
            )
    assert answers[0]["usage"]["cached_tokens"] >= len(history) - 1
    assert answers[3]["usage"]["cached_tokens"] >= len(history) + len(tail) - 1
    assert answers[4]["usage"]["cached_tokens"] == 2 * len(prompt) // 3 - 1
    for (_, ids), answer in zip(turns, answers, strict=True):
        assert answer["token_ids"] == native.run(ids, max_tokens, eos_ids=())["token_ids"], (
            setting,
            len(ids),
        )
    for ids, bits in kept.values():
        cold = device.cold_kv(ids)
        for role in ("target", "draft"):
            assert bits[role] == cold[role][: len(bits[role])], (setting, role)
        assert len(bits["target"]) >= len(ids) - 1


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: "-".join(map(str, setting)))
def test_tiny(tiny_bundle, setting) -> None:
    for seed in range(4):
        vocab = vocab_for(seed)
        prompt = (random_prompt(seed, vocab) * 40)[:90]  # crosses a page of 64 and two chunks of 32
        check_conversation(
            Native(tiny_bundle(seed, vocab)), prompt, random_prompt(seed + 9, vocab)[:7], setting, 20
        )


def test_pages_run_short(tiny_bundle) -> None:
    """Sessions that do not all fit: the answers stay those of cold runs, and some are given up."""
    native = Native(tiny_bundle(1, 384))
    device = Device(native)
    context = device.plan.target_model.max_context
    prompts = [
        ([number, *random_prompt(number, 384)] * context)[: context // 3] for number in (0, 1, 2, 0, 3, 4, 0)
    ]
    plain = [native.run(prompt, 9, eos_ids=())["token_ids"] for prompt in prompts]
    for number, prompt in enumerate(prompts):
        answer = device.ask(prompt, f"s{number % 4}", 9, ("model", 3, 2, 1))
        assert answer["token_ids"] == plain[number]
    assert device.memory.report()["num_evicted"] > 0


def test_sampled_turns(tiny_bundle) -> None:
    """Drawn with penalties, which look at prompt and answer: the same ids as cold, whatever was kept."""
    native = Native(tiny_bundle(2, 517))
    sampling = Sampling(temperature=0.9, seed=5, top_k=40, repetition_penalty=1.2, presence_penalty=0.5)
    plan, prompt = native.bundle.plan, (random_prompt(2, 517) * 40)[:70]

    def ask(ids: list[int], memory: Memory | None, drafter: str) -> dict:
        request = Request(ids, 20, 4, (), sampling=sampling, session="chat" if memory else None)
        return drive.run(decode(plan, request, make_drafter(drafter, plan), memory=memory), native.backend)

    prompts, plain = [prompt], []
    for tail in ([3, 1], [2], [9, 9, 9]):
        plain.append(ask(prompts[-1], None, "off")["token_ids"])
        prompts.append([*prompts[-1], *plain[-1], *tail])
    for drafter in ("off", "ngram", "model"):
        memory, kept = Memory(plan), []
        for ids, cold in zip(prompts, plain, strict=False):
            answer = ask(ids, memory, drafter)
            assert answer["token_ids"] == cold, drafter
            kept.append(answer["usage"]["cached_tokens"])
        assert kept == [0, len(prompts[0]) + 19, len(prompts[1]) + 19]


@pytest.mark.model
@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[4]], ids=("off", "model"))
def test_real_model(smollm2_bundle: Path, setting) -> None:
    native = Native(smollm2_bundle)
    vocab = native.bundle.plan.target_model.vocab_size
    prompt = (random_prompt(11, vocab) * 40)[:75]
    check_conversation(native, prompt, random_prompt(12, vocab)[:7], setting, 16)
