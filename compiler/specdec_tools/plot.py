"""Bar charts as SVG text, for benchmark reports: horizontal bars, one panel a chart, optional error marks.

Knows no report. Invariants: every panel has its own scale, which starts at 0; groups keep one colour over all panels; the
same input gives the same bytes; text is escaped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from specdec_runtime.faults import RequestError

COLOURS = ("#3b6ea5", "#c8743c", "#5f9e57", "#8a62a8", "#b04a5a", "#6b7780")
WIDTH, BAR, GAP, HEAD, VALUE = 760, 18, 6, 34, 90  # pixels; VALUE: the space right of a bar for its number
CHAR = 6.6  # about the width of a character of 12 pixels


@dataclass(frozen=True)
class Bar:
    """One value; low and high draw an error mark; bars of a group share a colour."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    group: str = ""


@dataclass(frozen=True)
class Chart:
    """One panel."""

    title: str
    unit: str
    bars: Sequence[Bar]


def svg(charts: Sequence[Chart]) -> str:
    """The panels below each other, with a legend where there is more than one group."""
    groups = list(dict.fromkeys(bar.group for chart in charts for bar in chart.bars))
    colours = {group: COLOURS[i % len(COLOURS)] for i, group in enumerate(groups)}
    labels = [len(bar.label) for chart in charts for bar in chart.bars]
    left = round(max(labels, default=0) * CHAR) + 20
    top, parts = 8, []
    for chart in charts:
        parts += _panel(chart, left, top, colours)
        top += HEAD + len(chart.bars) * (BAR + GAP) + 12
    if len(groups) > 1:
        parts += _legend(colours, left, top)
        top += 24
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([start, f'<rect width="{WIDTH}" height="{top}" fill="white"/>', *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>'


def _panel(chart: Chart, left: int, top: int, colours: dict[str, str]) -> list[str]:
    most = max((max(bar.value, bar.high or 0) for bar in chart.bars), default=0) or 1
    scale = (WIDTH - left - VALUE) / most
    out = [_text(8, top + 16, f"{chart.title} ({chart.unit})", ' font-weight="bold"')]
    for i, bar in enumerate(chart.bars):
        y = top + HEAD + i * (BAR + GAP) - 8
        out.append(_text(left - 8, y + 13, bar.label, ' text-anchor="end"'))
        width = round(bar.value * scale, 1)
        out.append(f'<rect x="{left}" y="{y}" width="{width:g}" height="{BAR}" fill="{colours[bar.group]}"/>')
        end = left + max(bar.value, bar.high or 0) * scale
        if bar.low is not None and bar.high is not None:
            low, high, middle = left + bar.low * scale, left + bar.high * scale, y + BAR / 2
            path = f"M{low:.1f} {middle - 4:g}v8M{low:.1f} {middle:g}H{high:.1f}M{high:.1f} {middle - 4:g}v8"
            out.append(f'<path d="{path}" stroke="#222" fill="none"/>')
        out.append(_text(round(end + 6, 1), y + 13, f"{bar.value:.4g}"))
    return out


def _legend(colours: dict[str, str], left: int, top: int) -> list[str]:
    out, x = [], float(left)
    for group, colour in colours.items():
        out.append(f'<rect x="{x:g}" y="{top}" width="12" height="12" fill="{colour}"/>')
        out.append(_text(x + 17, top + 10, group))
        x += round(len(group) * CHAR) + 36
    return out


def svg_path(text: str) -> Path:
    """A command's argument: the name of an SVG file."""
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .svg")
    return Path(text)


def write_svg(path: Path, charts: Sequence[Chart]) -> None:
    """Write the panels to a file."""
    try:
        path.write_text(svg(charts), encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f"it cannot be written: {error.strerror}", str(path), "Name another file"
        ) from None
