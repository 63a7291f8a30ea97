"""Grammars in a real Chromium: the page's engine and pump give the ids of the native run; a grammar that cannot be served is an error,
and the page goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from grammar_schemas import check, schemas
from runs import Native, random_prompt, vocab_for
from specdec_runtime.faults import RequestError
from specdec_tools.browser import BrowserOptions, page_session
from specdec_tools.serve import running_site

pytestmark = pytest.mark.browser
MAX_TOKENS = 40
GRAMMARS = [
    *({"type": "json_schema", "schema": schema} for schema in schemas(4, seed=21)),
    {"type": "json"},
    {"type": "regex", "pattern": r"(?:[a-z]{2,4}-)*\d+|é+"},
    {"type": "ebnf", "grammar": 'root ::= "yes" | "no" | [0-9]+ "!"'},
]
REFUSED = [
    ({"type": "json_schema", "schema": {"not": {}}}, "cannot be kept to"),
    ({"type": "regex", "pattern": "(?=a)"}, "more than to group"),
    ({"type": "ebnf", "grammar": "root ::= missing"}, "missing"),
    ({"type": "xml"}, "no such grammar"),
]
OPTIONS = {"wasm": BrowserOptions("wasm", threads=2), "webgpu": BrowserOptions("webgpu", "swiftshader")}


async def _all_runs(bundle: Path, backend: str) -> list[dict]:
    prompt = random_prompt(1, vocab_for(1))
    results = []
    with running_site(bundle) as site:
        async with page_session(site.url, OPTIONS[backend]) as page:
            await page.load("bundle/")
            for number, grammar in enumerate(GRAMMARS):
                request = {"prompt_ids": prompt, "max_tokens": MAX_TOKENS, "grammar": grammar}
                plain = await page.generate(request | {"drafter": "off", "k": 0})
                drafter = ("chain", "model", "ngram")[number % 3]
                fast = await page.generate(request | {"drafter": drafter, "k": 4})
                assert fast["token_ids"] == plain["token_ids"], (grammar, drafter)
                results.append(plain)
                grammar, said = REFUSED[number % len(REFUSED)]
                with pytest.raises(RequestError, match=said):
                    await page.generate(request | {"grammar": grammar})
    return results


@pytest.mark.parametrize("backend", OPTIONS)
def test_the_page_keeps_to_grammars(tiny_bundle, backend: str) -> None:
    bundle = tiny_bundle(1, vocab_for(1))
    results = asyncio.run(_all_runs(bundle, backend))
    native, prompt = Native(bundle), random_prompt(1, vocab_for(1))
    for grammar, result in zip(GRAMMARS, results, strict=True):
        if result["finish_reason"] == "stop" and "schema" in grammar:
            check(grammar["schema"], result["text"])
        if backend == "wasm":
            assert result["token_ids"] == native.run(prompt, MAX_TOKENS, grammar=grammar)["token_ids"], (
                grammar
            )
    assert any(result["finish_reason"] == "stop" for result in results)
