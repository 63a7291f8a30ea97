"""Sessions in a real browser, on the fake bundle and both backends: a second turn prefills only what is new, ids equal a cold run's."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import BrowserRig
from fake_bundle import CONTEXT, PAGE, fake_greedy
from specdec_runtime.faults import RequestError
from specdec_tools.browser import PageSession

pytestmark = pytest.mark.browser

PROMPT = [65 + index % 26 for index in range(300)]
CHUNK = 32


@pytest.fixture(params=["wasm", "webgpu"])
def page(rig: BrowserRig, fake_bundle: Path, request) -> PageSession:
    return rig.shared(fake_bundle, request.param)


def _ask(
    rig: BrowserRig, page: PageSession, prompt: list[int], name: str | None, **request
) -> tuple[dict, int]:
    """The result, and how many submits it took."""
    whole = {
        "prompt_ids": prompt,
        "max_tokens": 20,
        "drafter": "off",
        "k": 0,
        "plain_steps": 1,
        "ignore_eos": True,
    }
    result = rig.do(page.generate({**whole, "session": name, **request}))
    return result, rig.do(page.stats())["num_submits"]


def _plain(prompt: list[int], num: int) -> list[int]:
    """Past an end token too."""
    ids: list[int] = []
    while len(ids) < num:
        ids += fake_greedy([*prompt, *ids], num - len(ids))
    return ids


def test_a_second_turn_prefills_only_what_is_new(rig: BrowserRig, page: PageSession) -> None:
    for drafter, k, rounds in [("off", 0, 1), ("model", 3, 1), ("model", 7, 4), ("chain", 4, 2)]:
        rig.do(page.drop_session("chat"))
        how = {"drafter": drafter, "k": k, "rounds": rounds}
        first, _ = _ask(rig, page, PROMPT, "chat", **how)
        assert first["usage"]["cached_tokens"] == 0
        history = PROMPT + first["token_ids"]
        prompts = [[*history, 7, 8, 9], PROMPT, [*history[:150], 3, *history[150:]], [*history, 7, 8]]
        for prompt, kept in zip(prompts, (len(history) - 1, len(PROMPT) - 1, 150, 150), strict=True):
            result, num_submits = _ask(rig, page, prompt, "chat", **how)
            assert result["token_ids"] == _plain(prompt, 20), (drafter, k, rounds, len(prompt))
            assert result["usage"]["cached_tokens"] == kept
            chunks = -(-(len(prompt) - 1) // CHUNK) - kept // CHUNK
            if drafter == "off":
                assert num_submits == max(0, chunks) * (len(prompt) - 1 > kept) + 20, "prefill, and 20 steps"
            else:
                most = 2 * (chunks + 1)  # of both models, and a chunk that the draft was short of
                assert num_submits <= most + result["speculation"]["num_cycles"]


def test_sessions_share_pages_and_are_listed(rig: BrowserRig, page: PageSession) -> None:
    before = rig.do(page.sessions())
    for one in before["sessions"]:
        assert rig.do(page.drop_session(one["name"])) is True
    _ask(rig, page, PROMPT, "one")
    branch = [*PROMPT[:200], 9, 9]
    two, _ = _ask(rig, page, branch, "two")
    assert two["usage"]["cached_tokens"] == 200 // PAGE * PAGE and two["token_ids"] == _plain(branch, 20)
    listed = rig.do(page.sessions())
    assert [one["name"] for one in listed["sessions"]] == ["one", "two"]
    assert listed["sessions"][0]["tokens"] == len(PROMPT) + 19
    each = [one["pages"]["target"] for one in listed["sessions"]]
    assert listed["pages"]["target"] == {"held": sum(each) - 200 // PAGE, "total": CONTEXT // PAGE}
    whole, _ = _ask(rig, page, [66] * (CONTEXT - 9), None, max_tokens=5)
    assert whole["token_ids"] == _plain([66] * (CONTEXT - 9), 5)
    listed = rig.do(page.sessions())
    assert listed["sessions"] == [] and listed["num_evicted"] == before["num_evicted"] + 2
    assert rig.do(page.drop_session("one")) is False
    for name in ("", "x" * 65, 7):
        with pytest.raises(RequestError):
            _ask(rig, page, PROMPT, name)  # type: ignore[arg-type]
        with pytest.raises(RequestError):
            rig.do(page.drop_session(name))  # type: ignore[arg-type]


def test_a_cancelled_turn_is_gone_on_with(rig: BrowserRig, page: PageSession) -> None:
    rig.do(page.drop_session("chat"))
    cancel_js = """async (request) => {
      let seen = 0;
      return window.specdec.generate(request, () => { if (++seen === 3) window.specdec.cancel(); });
    }"""
    request = {
        "prompt_ids": PROMPT,
        "max_tokens": 400,
        "drafter": "model",
        "k": 4,
        "session": "chat",
        "ignore_eos": True,
    }
    cut = rig.do(page.page.evaluate(cancel_js, request))
    assert cut["finish_reason"] == "cancelled"
    history = PROMPT + cut["token_ids"]
    result, _ = _ask(rig, page, history, "chat", drafter="model", k=4)
    assert result["usage"]["cached_tokens"] == len(history) - 1
    assert result["token_ids"] == _plain(history, 20)


def test_other_work_between_the_turns(rig: BrowserRig, page: PageSession) -> None:
    """Requests without a session, and scores, have pages of their own; costs that are measured make all forgotten."""
    first, _ = _ask(rig, page, PROMPT, "chat")
    history = PROMPT + first["token_ids"]
    other, _ = _ask(rig, page, [70] * 100, None)
    assert other["token_ids"] == _plain([70] * 100, 20)
    asked = {"prompt_ids": [80] * 50, "score_ids": [60, 61, 62], "width": 4}
    assert len(rig.do(page.score(asked))["positions"]) == 3
    result, _ = _ask(rig, page, [*history, 5], "chat")
    assert result["usage"]["cached_tokens"] == len(history) - 1
    assert result["token_ids"] == _plain([*history, 5], 20)


def test_the_chat_page_goes_on_with_its_session(rig: BrowserRig, fake_bundle: Path) -> None:
    site = rig.site(fake_bundle)

    async def use() -> list[str]:
        page = await rig.browser.new_page()
        rig.pages.append(page)
        page.set_default_timeout(30000)
        await page.goto(site.url)
        notes = []
        for number, text in enumerate(("Hello there", "And again", "A third time")):
            await page.fill("#prompt", text)
            await page.keyboard.press("Enter")
            await page.wait_for_function(
                "(n) => document.querySelectorAll('.turn.answer:not(.running)').length === n", arg=number + 1
            )
            notes.append(await page.locator(".turn.answer .note").last.text_content() or "")
        return notes

    first, *later = rig.do(use())
    assert "kept" not in first
    assert all(" kept) read in" in note for note in later), later
