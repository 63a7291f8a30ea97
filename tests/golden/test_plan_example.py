"""docs/plan.md shows the tiny model's plan as it is now."""

from __future__ import annotations

from plan_example import DOC, block, parts, tiny_plan


def test_excerpt_is_the_plan() -> None:
    """To mend it: python tests/golden/update.py"""
    _, inside, _ = parts(DOC.read_text(encoding="utf-8"))
    assert inside == block(tiny_plan())
