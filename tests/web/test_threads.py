"""The WASM executor's threads: the same ids and scores for any number; a reason or a typed error where they cannot be had."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import BrowserRig
from fake_bundle import SOURCES, compile_wasm, fake_greedy, write_manifest
from specdec_runtime.faults import DeviceFault, RequestError
from specdec_tools.browser import PageSession, _processes

pytestmark = pytest.mark.browser

PROMPT_IDS = [72, 101, 108, 108, 111]
REQUEST = {"prompt_ids": PROMPT_IDS, "max_tokens": 20, "drafter": "model", "k": 4}
HELPER, TEAM, THREADS = "executor/wasm_helper.js", "executor/wasm_team.js", "executor/wasm_threads.js"


def _open(rig: BrowserRig, bundle: Path, **options) -> PageSession:
    return rig.page(rig.site(bundle, **options).url, "wasm")


def _threads(rig: BrowserRig, session: PageSession, threads: int | None) -> tuple[int, str]:
    """Load with so many threads; how many there are, and why not more."""
    device = rig.do(session.load("/bundle/", **({} if threads is None else {"threads": threads})))["device"]
    return device["threads"], device["threads_reason"]


def _answers(rig: BrowserRig, session: PageSession) -> bool:
    return rig.do(session.generate(REQUEST))["token_ids"] == fake_greedy(PROMPT_IDS, 20)


def test_ids_and_scores_are_the_same_for_any_number(rig: BrowserRig, tiny_bundle) -> None:
    """Real kernels: ids with a drafter, and the exact margins and log-probabilities of a whole answer at every width."""
    session = _open(rig, tiny_bundle(3, 517))
    prompt = [(37 * i + 11) % 517 for i in range(45)]
    found = []
    for threads in (1, 2, 3):
        assert _threads(rig, session, threads) == (threads, "")
        result = rig.do(
            session.generate({"prompt_ids": prompt, "max_tokens": 40, "drafter": "chain", "k": 7})
        )
        assert result["device"]["threads"] == threads
        ids = result["token_ids"]
        asked = {"prompt_ids": prompt, "score_ids": ids}
        scores = [rig.do(session.score(asked | {"width": width}))["positions"] for width in (1, 2, 4, 8)]
        found.append((ids, scores))
    assert len(found[0][0]) == 40 and found[0] == found[1] == found[2]


def test_the_page_chooses_by_the_machine(rig: BrowserRig, fake_bundle: Path) -> None:
    session = _open(rig, fake_bundle)
    cores = rig.do(session.page.evaluate("navigator.hardwareConcurrency"))
    assert _threads(rig, session, None) == (min(cores, 4), "")
    assert _answers(rig, session)
    for threads in (0, -1, 1.5, 33, "2"):
        with pytest.raises(RequestError, match="threads"):
            rig.do(session.load("/bundle/", threads=threads))
    url = f"{rig.site(fake_bundle).url}?bundle=/bundle/&backend=wasm&threads=3"
    rig.do(session.page.goto(url))
    rig.do(session.page.wait_for_function("window.specdec?.loaded"))
    assert rig.do(session.page.evaluate("window.specdec.loaded.device.threads")) == 3


def test_one_thread_where_more_cannot_be_had(rig: BrowserRig, fake_bundle: Path, bundle_copy: Path) -> None:
    session = _open(rig, fake_bundle, isolated=False)
    threads, reason = _threads(rig, session, 2)
    assert threads == 1 and "isolated" in reason
    assert _answers(rig, session)
    compile_wasm(SOURCES / "kernels.c", bundle_copy / "kernels.wasm", flags=())
    write_manifest(bundle_copy)
    session = _open(rig, bundle_copy)
    threads, reason = _threads(rig, session, 2)
    assert threads == 1 and "not built for threads" in reason
    assert _answers(rig, session)


@pytest.mark.parametrize("way", ["throws", "is missing", "is silent"])
def test_a_helper_that_does_not_start_leaves_one_thread(
    rig: BrowserRig, fake_bundle: Path, patched_web, way: str
) -> None:
    broken = {
        "throws": {HELPER: [("const bound", 'throw new Error("no room"); const bound')]},
        "is missing": {},
        "is silent": {HELPER: [('self.postMessage("ready");', "")], THREADS: [("30000", "1500")]},
    }
    web = patched_web(broken[way])
    if way == "is missing":
        (web / HELPER).unlink()
    session = _open(rig, fake_bundle, web=web)
    threads, reason = _threads(rig, session, 2)
    assert threads == 1 and "did not start" in reason
    assert ("no room" in reason) == (way == "throws")
    assert _answers(rig, session)


@pytest.mark.parametrize("way", ["throws", "stops"])
def test_a_helper_that_is_lost_is_a_fault(rig: BrowserRig, fake_bundle: Path, patched_web, way: str) -> None:
    """Inside a program, with the first thread waiting for it; and the next load works."""
    lost = {"throws": 'throw new Error("lost");', "stops": "for (;;) pause();"}[way]
    inside = "const open = Atomics.load(control, OPEN);"
    web = patched_web(
        {TEAM: [(inside, f"{inside} if (open) {lost}"), ("LIMIT_MS = 30000", "LIMIT_MS = 1000")]}
    )
    session = _open(rig, fake_bundle, web=web)
    assert _threads(rig, session, 2) == (2, "")
    with pytest.raises(DeviceFault, match="helper thread"):
        for _ in range(50):  # one that comes too late for a program is not inside it
            _answers(rig, session)
    with pytest.raises(DeviceFault):
        rig.do(session.generate(REQUEST))
    assert _threads(rig, session, 1) == (1, "")
    assert _answers(rig, session)


def _worker_threads(rig: BrowserRig) -> int:
    """Threads of workers in the browser's renderers, by their names."""
    names = []
    for pid in rig.do(_processes(rig.browser, "renderer")):
        names += [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    return sum(name.startswith("DedicatedWorker") for name in names)


def test_a_new_load_ends_the_helpers(rig: BrowserRig, fake_bundle: Path) -> None:
    session = _open(rig, fake_bundle)
    assert _threads(rig, session, 3) == (3, "")
    several = _worker_threads(rig)
    assert several >= 3, "the page's worker and two helpers"
    for threads, gone in ((3, 0), (1, 2)):
        assert _threads(rig, session, threads) == (threads, "")
        assert _answers(rig, session)
        deadline = time.monotonic() + 10
        while _worker_threads(rig) != several - gone and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _worker_threads(rig) == several - gone
