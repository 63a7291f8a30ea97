"""The page in a real browser, end to end on the fake bundle: exact, on both backends, and cancelled cleanly."""

from __future__ import annotations

from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from conftest import BrowserRig
from fake_bundle import CONTEXT, EOS, build_fake_bundle, fake_greedy
from specdec_runtime.faults import RequestError
from specdec_tools.browser import PageSession

pytestmark = pytest.mark.browser

BACKENDS = ["wasm", "webgpu"]
PROMPT_IDS = [72, 101, 108, 108, 111]


def _generate(rig: BrowserRig, session: PageSession, **request) -> dict:
    whole = {"prompt_ids": PROMPT_IDS, "max_tokens": 60, "drafter": "off", "k": 4} | request
    return rig.do(session.generate(whole))


@pytest.fixture(params=BACKENDS)
def session(rig: BrowserRig, fake_bundle: Path, request) -> PageSession:
    return rig.shared(fake_bundle, request.param)


def test_greedy_is_exact_whatever_the_drafter(rig: BrowserRig, session: PageSession) -> None:
    for prompt in ([65], PROMPT_IDS, list(range(32, 127)) * 3):
        plain = fake_greedy(prompt, 120)
        for drafter, k in [("off", 0), ("ngram", 4), ("model", 1), ("model", 3), ("model", 7), ("chain", 4)]:
            result = _generate(rig, session, prompt_ids=prompt, max_tokens=120, drafter=drafter, k=k)
            assert result["token_ids"] == plain, (drafter, k)
            counted = {"prompt_tokens": len(prompt), "completion_tokens": len(plain), "cached_tokens": 0}
            assert result["usage"] == counted
            assert result["finish_reason"] == ("stop" if plain[-1] == EOS else "length")
            spec = result["speculation"]
            extra = spec["num_target_passes"] + spec["num_accepted"] - len(plain)
            assert extra in (
                0,
                1 if plain[-1] == EOS else 0,
            )  # an accepted EOS leaves no room for a bonus token
            if drafter == "model":
                assert 0 < spec["num_accepted"] < spec["num_drafted"]
    assert result["device"]["backend"] == session.options.backend


def test_rounds_do_not_change_the_answer(rig: BrowserRig, session: PageSession) -> None:
    """Up to 4 * 9 - 1 calls in a submit, of kinds that come again with other writes; an end of text inside one."""
    for prompt in ([65], list(range(32, 127)) * 3):
        plain = fake_greedy(prompt, 120)
        for drafter, k, rounds in [("model", 1, 2), ("model", 3, 4), ("model", 7, 4), ("chain", 4, 3)]:
            request = {"prompt_ids": prompt, "max_tokens": 120, "drafter": drafter, "k": k, "rounds": rounds}
            result = _generate(rig, session, **request)
            assert result["token_ids"] == plain, (drafter, k, rounds)
            assert result["speculation"]["rounds"] == rounds
            assert result["speculation"]["fallbacks"] == {}


def test_result_has_every_field(rig: BrowserRig, session: PageSession) -> None:
    heard: list[str] = []
    session.on_text = heard.append
    result = _generate(rig, session, prompt_ids=PROMPT_IDS, max_tokens=90)
    assert result["prompt_ids"] == PROMPT_IDS
    assert "".join(heard) == result["text"]
    shown = [index for index in result["token_ids"] if index < 256]
    assert result["text"] == bytes(shown).decode(errors="replace")
    assert set(result["timing_ms"]) == {
        "load", "first_token", "prefill", "decode", "draft", "verify", "other",
    }  # fmt: skip
    assert set(result) == {
        "prompt_ids", "token_ids", "text", "finish_reason", "stop", "seed", "logprobs", "usage", "speculation",
        "timing_ms", "device",
    }  # fmt: skip
    assert set(result["speculation"]) == {
        "mode", "drafter", "num_cycles", "num_drafted", "num_accepted", "num_evaluated", "num_target_passes",
        "num_draft_passes", "fallbacks", "plain_steps", "rounds", "schedule",
    }  # fmt: skip
    of_cpu = {"threads", "threads_reason"} if session.options.backend == "wasm" else set()
    assert set(result["device"]) == {"backend", "adapter", "self_test", *of_cpu}
    assert set(result["device"]["self_test"]) == {"verdict", "passes", "ms", "mismatches"}


def test_schedules(rig: BrowserRig, fake_bundle: Path) -> None:
    """Exact under every schedule; what passes cost was measured at load, but on a software adapter assumed."""
    for backend in BACKENDS:
        session = rig.page(rig.site(fake_bundle).url, backend)
        loaded = rig.do(session.load("/bundle/", costs=True))
        assert loaded["schedules"] == ["fixed", "heuristic", "confidence", "break_even"]
        assert loaded["schedule"] == "break_even"
        costs = loaded["costs"]
        assert (costs["how"] == "assumed") == (backend == "webgpu"), costs
        assert all(ms > 0 for ms in [costs["sync"], costs["draft_step"], *costs["verify"].values()])
        for schedule, drafter, rounds in (
            ("auto", "chain", 1),
            ("break_even", "model", 4),
            ("heuristic", "model", 4),
            ("confidence", "model", 1),
        ):
            request = {"schedule": schedule, "drafter": drafter, "k": 7, "max_tokens": 90, "rounds": rounds}
            result = _generate(rig, session, **request)
            assert result["token_ids"] == fake_greedy(PROMPT_IDS, 90)
            told = result["speculation"]["schedule"]
            assert told["name"] == ("break_even" if schedule == "auto" else schedule)
            num_submits, num_cycles = sum(told["choices"].values()), result["speculation"]["num_cycles"]
            assert num_submits == num_cycles or (rounds > 1 and num_submits < num_cycles), told
            assert schedule != "heuristic" or any("(4 rounds)" in label for label in told["choices"]), told
            assert schedule != "confidence" or told["num_stops"] > 0, told
        assert _generate(rig, session, drafter="model", schedule="auto")["speculation"]["rounds"] == 1


def test_characters_are_never_cut(rig: BrowserRig, session: PageSession) -> None:
    """The fake model says é and emoji byte by byte, over several tokens."""
    heard: list[str] = []
    session.on_text = heard.append
    text = ""
    for start in range(70, 90):
        text += _generate(rig, session, prompt_ids=[start], max_tokens=80, drafter="model")["text"].rstrip(
            "\ufffd"
        )
    assert "é" in text
    assert any("\U0001f600" <= character <= "\U0001f64f" for character in text)
    assert "\ufffd" not in text
    assert sum(piece.count("\ufffd") for piece in heard) <= 20  # only an end that cuts a character


def test_stop_strings(rig: BrowserRig, session: PageSession) -> None:
    """Cut where Python says; what was streamed is the text, also where the end was held back."""
    heard: list[str] = []
    session.on_text = heard.append
    whole = _generate(rig, session, max_tokens=60)
    text = whole["text"]
    for drafter, stop, rounds in (
        ("off", text[20:23], 1),
        ("model", text[31:33], 4),
        ("chain", text[1:9], 1),
    ):
        for asked in (stop, [stop, "never said"]):
            heard.clear()
            result = _generate(rig, session, max_tokens=60, drafter=drafter, stop=asked, rounds=rounds)
            assert (result["finish_reason"], result["stop"]) == ("stop", stop)
            assert result["text"] == "".join(heard) == text[: text.index(stop)]
            assert result["token_ids"] == whole["token_ids"][: len(result["token_ids"])]
            assert result["usage"]["completion_tokens"] == len(result["token_ids"])
    heard.clear()
    held = _generate(rig, session, max_tokens=60, drafter="model", stop=[text[-4:] + "never said"])
    assert held["text"] == "".join(heard) == text and held["stop"] is None
    assert heard[-1] == text[-4:], "told when it was over"
    assert _generate(rig, session, max_tokens=60, stop=[])["text"] == text


def test_logprobs(rig: BrowserRig, fake_bundle: Path) -> None:
    """The same on both backends, drafted or not; told with the text they belong to."""
    found = []
    for backend in BACKENDS:
        session = rig.shared(fake_bundle, backend)
        for more in (
            {"drafter": "off", "plain_steps": 1},
            {"drafter": "off", "plain_steps": 4},
            {"drafter": "model", "rounds": 4},
            {"drafter": "chain", "stop": "never said"},
        ):
            result = _generate(rig, session, max_tokens=40, logprobs=5, **more)
            assert [one["id"] for one in result["logprobs"]] == result["token_ids"]
            found.append(result["logprobs"])
    assert found[0][0]["top"][0] == {"id": found[0][0]["id"], "logprob": 0} and len(found[0][0]["top"]) == 5
    assert all(one == found[0] for one in found)


def test_null_is_as_if_left_out(rig: BrowserRig, fake_bundle: Path) -> None:
    session = rig.shared(fake_bundle, "wasm")
    names = ("prompt", "messages", "raw", "max_tokens", "drafter", "k", "schedule", "plain_steps", "rounds")
    bare = rig.do(session.generate({"prompt_ids": PROMPT_IDS}))
    full = rig.do(session.generate({**dict.fromkeys(names), "prompt_ids": PROMPT_IDS}))
    assert bare["token_ids"] == full["token_ids"] == fake_greedy(PROMPT_IDS, 256)
    assert bare["speculation"] == full["speculation"] and bare["speculation"]["drafter"] == "ngram"


@pytest.mark.parametrize(
    ("request_fields", "where"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "x", "system": 5}, "system"),
        ({"messages": 0, "system": "x"}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "raw": True}, "prompt"),
    ],
)
def test_prompts_that_are_none_are_named(
    rig: BrowserRig, fake_bundle: Path, request_fields: dict, where: str
) -> None:
    with pytest.raises(RequestError) as caught:
        rig.do(rig.shared(fake_bundle, "wasm").generate(request_fields))
    assert caught.value.where == where


def test_a_seed_is_told(rig: BrowserRig, fake_bundle: Path) -> None:
    """Given, or drawn by the worker; at temperature 0 nothing is drawn. null is as if left out."""
    session = rig.shared(fake_bundle, "wasm")
    greedy = _generate(rig, session, max_tokens=5, seed=7, stop=None, logprobs=None, top_k=None)
    assert (greedy["speculation"]["mode"], greedy["seed"]) == ("greedy", None)
    given = _generate(rig, session, max_tokens=5, temperature=0.5, seed=2**53 - 1)
    assert (given["speculation"]["mode"], given["seed"]) == ("coupled", 2**53 - 1)
    drawn = {_generate(rig, session, max_tokens=1, temperature=0.5)["seed"] for _ in range(3)}
    assert len(drawn) == 3 and all(0 <= seed < 2**53 for seed in drawn)


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("stop", ["x", ""], "stop[1]"),
        ("stop", 5, "stop"),
        ("stop", ["\ufffd"], "stop[0]"),
        ("logprobs", 6, "logprobs"),
        ("ignore_eos", 1, "ignore_eos"),
        ("temperature", "hot", "temperature"),
        ("top_k", 1.5, "top_k"),
        ("top_p", 0, "top_p"),
        ("min_p", -1, "min_p"),
        ("seed", -1, "seed"),
        ("seed", 2**53, "seed"),
        ("mode", "lenient", "mode"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("frequency_penalty", 3, "frequency_penalty"),
        ("presence_penalty", 3, "presence_penalty"),
        ("logit_bias", [1], "logit_bias"),
        ("logit_bias", {"x": 1}, "logit_bias"),
        ("logit_bias", {"1": 101}, "logit_bias[1]"),
        ("bad_words", "the", "bad_words"),
        ("bad_words", [""], "bad_words[0]"),
        ("allowed_ids", [], "allowed_ids"),
        ("min_tokens", -1, "min_tokens"),
        ("temperature", float("nan"), "temperature"),
        ("max_tokens", "5", "max_tokens"),
        ("rounds", 0, "rounds"),
        ("prompt_ids", 5, "prompt_ids"),
        ("prompt_ids", 0, "prompt_ids"),
        ("eos_ids", [5], "eos_ids"),
    ],
)
def test_bad_options_are_named(rig: BrowserRig, fake_bundle: Path, field: str, value, where: str) -> None:
    with pytest.raises(RequestError) as caught:
        _generate(rig, rig.shared(fake_bundle, "wasm"), **{field: value})
    assert caught.value.where == where and caught.value.action


def test_scores_do_not_depend_on_the_width(rig: BrowserRig, fake_bundle: Path) -> None:
    found = []
    for backend in BACKENDS:
        session = rig.shared(fake_bundle, backend)
        for width in (1, 2, 4, 8):
            asked = {"prompt_ids": PROMPT_IDS, "score_ids": list(range(60, 81)), "width": width}
            found.append(rig.do(session.score(asked))["positions"])
    assert len(found[0]) == 21
    assert all(positions == found[0] for positions in found)


def test_prompts_become_ids_by_template_and_raw(rig: BrowserRig, fake_bundle: Path) -> None:
    session = rig.shared(fake_bundle, "wasm")

    def prompt_ids(**request) -> list[int]:
        return _generate(rig, session, prompt_ids=None, max_tokens=1, **request)["prompt_ids"]

    assert prompt_ids(prompt="Zq", raw=True) == [90, 113]
    chat = prompt_ids(prompt="Zq")
    assert chat[0] == 297 and bytes([90, 113]) in bytes(index % 256 for index in chat)
    assert len(prompt_ids(prompt="Zq", system="Xy")) > len(chat)
    with pytest.raises(RequestError, match="empty"):
        prompt_ids(prompt="", raw=True)
    with pytest.raises(RequestError):
        prompt_ids(prompt="x", raw=True, system="Be brief")
    with pytest.raises(RequestError):
        prompt_ids()


def test_bos_is_added_where_the_model_wants_it(rig: BrowserRig, tmp_path: Path) -> None:
    bundle = build_fake_bundle(tmp_path / "bos", draft=False, add_bos=True, template=False)
    session = rig.loaded(bundle, "wasm")
    result = _generate(rig, session, prompt_ids=None, prompt="", raw=True, max_tokens=5)
    assert result["prompt_ids"] == [296]
    assert result["token_ids"] == fake_greedy([296], 5)
    with pytest.raises(RequestError, match="chat template"):
        _generate(rig, session, prompt_ids=None, prompt="Hi")
    with pytest.raises(RequestError):
        _generate(rig, session, drafter="model")


def test_requests_that_cannot_be_served(rig: BrowserRig, session: PageSession) -> None:
    for request in [
        {"prompt_ids": []},
        {"prompt_ids": [300]},
        {"prompt_ids": [-1]},
        {"prompt_ids": [65] * CONTEXT},
        {"prompt_ids": [65] * (CONTEXT + 1)},
        {"k": 8},
        {"max_tokens": -1},
        {"drafter": "oracle"},
        {"schedule": "oracle"},
    ]:
        with pytest.raises(RequestError):
            _generate(rig, session, **request)
    assert _generate(rig, session, max_tokens=0)["token_ids"] == []
    assert _generate(rig, session, max_tokens=1, drafter="model", k=7)["token_ids"] == fake_greedy(
        PROMPT_IDS, 1
    )
    full = [65] * (CONTEXT - 1)
    assert len(_generate(rig, session, prompt_ids=full)["token_ids"]) == 1


def test_cancel_then_the_same_request_again(rig: BrowserRig, session: PageSession) -> None:
    prompt = next(start for start in range(60, 128) if len(fake_greedy([start], 400)) == 400)
    plain = fake_greedy([prompt], 400)
    cancel_js = """async (request) => {
      let seen = 0;
      return window.specdec.generate(request, () => { if (++seen === 3) window.specdec.cancel(); });
    }"""
    for drafter in ("off", "model"):
        request = {"prompt_ids": [prompt], "max_tokens": 400, "drafter": drafter, "k": 4}
        cut = rig.do(session.page.evaluate(cancel_js, request))
        assert cut["finish_reason"] == "cancelled"
        assert 3 <= len(cut["token_ids"]) < 400
        assert cut["token_ids"] == plain[: len(cut["token_ids"])]
        assert _generate(rig, session, **request)["token_ids"] == plain


def test_cancel_while_the_prompt_is_read(rig: BrowserRig, session: PageSession) -> None:
    prompt = [65 + index % 26 for index in range(1500)]
    cancel_js = """async (request) => {
      const stop = () => window.specdec.cancel();
      return window.specdec.generate(request, () => {}, (progress) => { if (progress.done < 500) stop(); });
    }"""
    request = {"prompt_ids": prompt, "max_tokens": 9, "drafter": "model", "k": 4}
    cut = rig.do(session.page.evaluate(cancel_js, request))
    assert cut["finish_reason"] == "cancelled" and cut["token_ids"] == []
    assert _generate(rig, session, **request)["token_ids"] == fake_greedy(prompt, 9)


def test_cancel_while_costs_are_measured(rig: BrowserRig, fake_bundle: Path) -> None:
    """The first scheduled request of a load without costs measures them first: a cancel then ends it all the same."""
    session = rig.loaded(fake_bundle, "wasm")
    prompt = next(start for start in range(60, 128) if len(fake_greedy([start], 400)) == 400)
    cancel_js = """async (request) => {
      const running = window.specdec.generate(request);
      window.specdec.cancel();
      return running;
    }"""
    request = {
        "prompt_ids": [prompt],
        "max_tokens": 400,
        "drafter": "model",
        "k": 4,
        "schedule": "break_even",
    }
    cut = rig.do(session.page.evaluate(cancel_js, request))
    assert cut["finish_reason"] == "cancelled" and len(cut["token_ids"]) < 100
    whole = _generate(rig, session, **request)
    assert whole["token_ids"] == fake_greedy([prompt], 400)
    assert whole["speculation"]["schedule"]["costs"]["how"] == "measured at load"


def test_two_requests_at_once(rig: BrowserRig, fake_bundle: Path) -> None:
    """They run in the order in which they came; `cancel` ends the first alone."""
    session = rig.shared(fake_bundle, "wasm")
    both_js = """async (request) => {
      const ended = [];
      const note = (name, promise) => promise.then((result) => (ended.push(name), result));
      const first = note("first", window.specdec.generate(request));
      const second = note("second", window.specdec.generate({ ...request, max_tokens: 2 }));
      window.specdec.cancel();
      const results = await Promise.all([first, second]);
      return [ended, ...results.map((result) => [result.finish_reason, result.token_ids.length])];
    }"""
    request = {"prompt_ids": [65] * 1900, "max_tokens": 3, "drafter": "off", "k": 0}
    ended = rig.do(session.page.evaluate(both_js, request))
    assert ended == [["first", "second"], ["cancelled", 0], ["length", 2]]


def test_chat_page_as_a_person_uses_it(rig: BrowserRig, fake_bundle: Path) -> None:
    site = rig.site(fake_bundle)
    others: list[str] = []

    async def use() -> dict[str, str]:
        page = await rig.browser.new_page()
        rig.pages.append(page)
        page.set_default_timeout(30000)
        page.on(
            "request", lambda request: others.append(request.url) if site.url not in request.url else None
        )
        await page.goto(site.url)  # leads to the bundle
        await page.fill("#prompt", "Hello")
        await page.select_option("#drafter", "model")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".turn.answer:not(.running)")
        shown = {
            name: await page.text_content(f"#{name}") or ""
            for name in ("drafted", "accepted", "count", "model")
        }
        shown["about"] = await page.get_attribute("#model", "title") or ""
        shown["detail"] = await page.text_content("#device-detail") or ""
        shown["answer"] = await page.text_content(".turn.answer") or ""
        shown["marked"] = str(await page.locator(".accepted").count())
        shown["bytes"] = await page.text_content("#bytes") or ""
        await page.fill("#k", "9")
        await page.fill("#prompt", "Again")
        await page.click("#send")
        await page.wait_for_selector("#fault:not([hidden])")
        shown["fault"] = await page.text_content("#fault") or ""
        shown["kept"] = await page.input_value("#prompt")
        return shown

    shown = rig.do(use())
    assert shown["model"] == "fake"
    assert shown["about"] == "Apache-2.0; draft: unproven" and "draft of unknown origin" in shown["detail"]
    assert int(shown["drafted"]) >= int(shown["accepted"]) > 0 and int(shown["count"]) > 0
    assert int(shown["marked"]) > 0 and len(shown["answer"]) > 10
    assert "KiB of" in shown["bytes"]
    assert "RequestError" in shown["fault"] and shown["kept"] == "Again"
    assert others == []


def test_turns_are_regenerated_and_edited(rig: BrowserRig, fake_bundle: Path) -> None:
    """By keyboard alone; a stopped answer stays; what an edit replaces is gone from the screen and from what is sent."""
    site = rig.site(fake_bundle)

    async def use() -> dict:
        page = await rig.browser.new_page()
        rig.pages.append(page)
        page.set_default_timeout(30000)
        await page.goto(site.url)
        turns = page.locator(".turn")

        async def answered(count: int) -> list[str]:
            await page.wait_for_function(
                f"document.querySelectorAll('.turn').length === {count} && document.querySelector('#stop').hidden"
            )
            return await turns.locator(".said").all_text_contents()

        async def press(name: str, which: int) -> None:
            await turns.get_by_role("button", name=name).nth(which).focus()
            await page.keyboard.press("Enter")

        async def say(text: str) -> None:
            await page.fill("#prompt", text)
            await page.keyboard.press("Enter")

        seen = {}
        await page.fill("#max-tokens", "40")
        await say("One")
        await answered(2)
        await say("Two")
        seen["two"] = await answered(4)
        await press("Regenerate", 1)
        seen["again"] = await answered(4)
        await press("Edit", 1)
        seen["offered"] = await page.input_value("#prompt")
        await page.keyboard.press("Escape")
        seen["left"] = await page.input_value("#prompt")
        await press("Edit", 0)
        seen["editing"] = await page.locator(".editing").count()
        await say("Three")
        seen["edited"] = await answered(2)
        seen["sent"] = await page.evaluate(
            "specdec.chat.completions.create({ messages: [{ role: 'user', content: 'Three' }], max_tokens: 40 })"
            ".then((done) => done.choices[0].message.content)"
        )
        await page.fill("#max-tokens", "9999")
        await page.fill("#stop-text", "")
        await page.evaluate(
            "new MutationObserver(() => document.querySelector('.turn.running .said span') && document.querySelector('#stop').click())"
            ".observe(document.querySelector('#log'), { childList: true, subtree: true })"
        )
        await say("7")
        seen["stopped"] = await answered(4)
        return seen

    seen = rig.do(use())
    assert seen["two"] == seen["again"] and len(set(seen["two"])) == 4
    assert (seen["offered"], seen["left"], seen["editing"]) == ("Two", "", 1)
    assert seen["edited"] == ["Three", seen["sent"]] and seen["sent"] != seen["two"][1]
    assert seen["stopped"][:2] == seen["edited"] and len(seen["stopped"][3]) < 1500


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args) -> None:
        pass


def test_page_from_any_static_server(rig: BrowserRig, fake_bundle: Path, patched_web) -> None:
    """Python's plain http.server: no isolation headers; the bundle in a folder beside the page."""
    web = patched_web({})
    (web / "models").mkdir()
    fake_bundle_copy = web / "models" / "fake"
    fake_bundle_copy.symlink_to(fake_bundle)
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: _Quiet(*args, directory=str(web)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        session = rig.page(f"http://127.0.0.1:{server.server_address[1]}/", "wasm")
        assert rig.do(session.page.evaluate("crossOriginIsolated")) is False
        loaded = rig.do(session.load("models/fake"))
        assert loaded["memory"]["weight"] == 2 * 16384
        assert _generate(rig, session, drafter="model")["token_ids"] == fake_greedy(PROMPT_IDS, 60)
    finally:
        rig.close_pages()
        server.shutdown()
        server.server_close()
        thread.join()
