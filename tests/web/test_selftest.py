"""The load-time self-test on a real WebGPU implementation: honest bundles pass, tampered ones get the fallback that is exact again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import BrowserRig
from fake_bundle import fake_greedy
from specdec_tools.browser import PageSession
from tampered import ALL_ROWS, ODD_SLOTS, tampered

pytestmark = pytest.mark.browser

PROMPTS = ([5, 9, 17, 5, 9, 17, 5, 9, 17, 5], list(range(3, 40)))
DRAFTED = (("ngram", 4), ("model", 3))
LOGITS, KEYS, FAKE_KV = "target.logits", "target.kv.0", "target.kv"

# name -> (program -> what of it is changed for which rows, verdict)
MUTANTS = {
    "logits of width 4": ({"target.verify_4": (LOGITS, ALL_ROWS)}, "widest"),
    "kv of width 2": ({"target.verify_2": (FAKE_KV, ALL_ROWS)}, "widest"),
    "kv of width 1": ({"target.verify_1": (FAKE_KV, ALL_ROWS)}, "widest"),
    "slots of width 8": ({"target.verify_8": (LOGITS, ODD_SLOTS)}, "plain"),
    "neighbours in width 8": ({"target.verify_8": (LOGITS, "rows > 1")}, "plain"),
    "slots of width 8, and prefill": (
        {"target.verify_8": (FAKE_KV, ODD_SLOTS), "target.prefill": (FAKE_KV, ALL_ROWS)},
        "plain",
    ),
    "prefill": ({"target.prefill": (FAKE_KV, ALL_ROWS)}, "reduced: row-invariant"),
}
FALLBACKS = {
    "slots of width 8": ({"target.verify_8": (LOGITS, ODD_SLOTS)}, "plain"),
    "width 4, and prefill": (
        {"target.verify_4": (LOGITS, ALL_ROWS), "target.prefill": (KEYS, ALL_ROWS)},
        "widest",
    ),
}


def load(rig: BrowserRig, bundle: Path, **options) -> tuple[PageSession, dict]:
    session = rig.page(rig.site(bundle).url, "webgpu")
    loaded = rig.do(session.load("/bundle/", **options))
    return session, loaded["device"]["self_test"]


def generate(rig: BrowserRig, session: PageSession, prompt: list[int], drafter: str, k: int, **more) -> dict:
    request = {"prompt_ids": prompt, "max_tokens": 12, "drafter": drafter, "k": k, **more}
    return rig.do(session.generate(request))


def differing(rig: BrowserRig, session: PageSession) -> list[tuple]:
    """(prompt, drafter, k) whose ids are not the plain ones, and scores at other widths that are not those of width 1."""
    found: list[tuple] = []
    for prompt in PROMPTS:
        plain = generate(rig, session, prompt, "off", 0)
        for drafter, k in DRAFTED:
            result = generate(rig, session, prompt, drafter, k)
            if result["token_ids"] != plain["token_ids"]:
                found.append((len(prompt), drafter, k))
        steps = generate(rig, session, prompt, "off", 0, plain_steps=5)
        if steps["token_ids"] != plain["token_ids"]:
            found.append((len(prompt), "steps", 5))
        scores = []
        for width in (1, 4, 8):
            asked = {"prompt_ids": prompt, "score_ids": plain["token_ids"][:9], "width": width}
            scores.append(rig.do(session.score(asked))["positions"])
        found += [(len(prompt), "score", i) for i, score in enumerate(scores) if score != scores[0]]
    return found


def test_an_honest_bundle(rig: BrowserRig, tiny_bundle: Callable[..., Path]) -> None:
    """Reduced and full; what the test wrote is no part of a later answer."""
    bundle = tiny_bundle(1, 384)
    session, test = load(rig, bundle, selftest=False)
    assert test == {"verdict": "not run", "passes": 0, "ms": 0, "mismatches": []}
    untested = generate(rig, session, PROMPTS[1], "model", 3)
    for option, verdict, passes in ((True, "reduced: row-invariant", 10), ("full", "row-invariant", 80)):
        session, test = load(rig, bundle, selftest=option)
        assert (test["verdict"], test["mismatches"]) == (verdict, [])
        assert passes <= test["passes"] < 100 and test["ms"] > 0
        result = generate(rig, session, PROMPTS[1], "model", 3)
        assert result["token_ids"] == untested["token_ids"]
        assert result["device"]["self_test"] == test


@pytest.mark.parametrize("name", MUTANTS)
def test_one_bit_is_noticed(rig: BrowserRig, fake_bundle: Path, tmp_path: Path, name: str) -> None:
    changes, verdict = MUTANTS[name]
    _, test = load(rig, tampered(fake_bundle, tmp_path / "bundle", changes))
    assert test["verdict"] == verdict, test
    blamed = {text.split(":")[0] for text in test["mismatches"]}
    assert blamed & set(changes) or "target.verify_1" in changes, (
        test
    )  # width 1 is what the others are held against


@pytest.mark.parametrize("name", FALLBACKS)
def test_fallbacks_are_exact(
    rig: BrowserRig, tiny_bundle: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """Without the test this bundle's answers depend on the drafter; with it they do not."""
    changes, verdict = FALLBACKS[name]
    bundle = tampered(tiny_bundle(1, 384), tmp_path / "bundle", changes, strong=True)
    session, test = load(rig, bundle, selftest=False)
    assert test["verdict"] == "not run"
    assert differing(rig, session), "the tampering is too weak to matter"
    session, test = load(rig, bundle)
    assert test["verdict"] == verdict
    assert differing(rig, session) == []
    result = generate(rig, session, PROMPTS[0], "model", 3)
    speculation = result["speculation"]
    if verdict == "plain":
        assert speculation["fallbacks"] == {"rows_differ": 1}
        assert speculation["num_drafted"] == 0 == speculation["num_draft_passes"]
    else:
        assert speculation["fallbacks"] == {} and speculation["num_drafted"] > 0


def test_a_prefill_that_disagrees_is_not_used(rig: BrowserRig, fake_bundle: Path, tmp_path: Path) -> None:
    """The prompt goes through the verify programs: the answer is the honest bundle's, whatever the drafter."""
    prompt = list(range(40, 90))
    expected = fake_greedy(prompt, 12)
    bundle = tampered(fake_bundle, tmp_path / "bundle", {"target.prefill": (FAKE_KV, ALL_ROWS)})
    session, test = load(rig, bundle, selftest=False)
    assert generate(rig, session, prompt, "off", 0)["token_ids"] != expected, "too weak to matter"
    session, test = load(rig, bundle)
    assert test["mismatches"][0].startswith("target.prefill: target.kv")
    for drafter, k in (("off", 0), *DRAFTED):
        assert generate(rig, session, prompt, drafter, k)["token_ids"] == expected


def test_the_page_says_the_verdict(rig: BrowserRig, fake_bundle: Path, tmp_path: Path) -> None:
    """By specification on the CPU; on a GPU whose slots differ also under the answer, where drafts were asked for."""
    wrong = tampered(fake_bundle, tmp_path / "bundle", {"target.verify_8": (LOGITS, ODD_SLOTS)})

    async def shown(bundle: Path, backend: str) -> tuple[str, str]:
        page = await rig.browser.new_page()
        rig.pages.append(page)
        page.set_default_timeout(300000)
        await page.goto(f"{rig.site(bundle).url}?bundle=/bundle/&backend={backend}")
        await page.wait_for_selector("#prompt:not([disabled])")
        await page.fill("#prompt", "Hello")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".turn.answer:not(.running)")
        detail = await page.text_content("#device-detail") or ""
        return detail, await page.text_content(".answer .note") or ""

    detail, note = rig.do(shown(fake_bundle, "wasm"))
    assert "self-test: by specification" in detail and "no drafts" not in note
    detail, note = rig.do(shown(wrong, "webgpu"))
    assert "self-test: rows differ, speculation off (" in detail
    assert "no drafts: this GPU's rows differ" in note
    detail, note = rig.do(shown(fake_bundle, "webgpu"))
    assert "self-test: rows equal, reduced (" in detail and "no drafts" not in note
