"""Bar charts: exact text for a small one, scales, marks, groups, escaping."""

import argparse
import re
import xml.etree.ElementTree as ET

import pytest
from specdec_runtime.faults import RequestError
from specdec_tools.plot import Bar, Chart, svg, svg_path, write_svg

SMALL = """\
<svg xmlns="http://www.w3.org/2000/svg" width="760" height="102" viewBox="0 0 760 102" font-family="sans-serif" font-size="12">
<rect width="760" height="102" fill="white"/>
<text x="8" y="24" font-weight="bold">decode (tokens/s)</text>
<text x="19" y="47" text-anchor="end">a</text>
<rect x="27" y="34" width="643" height="18" fill="#3b6ea5"/>
<text x="676" y="47">100</text>
<text x="19" y="71" text-anchor="end">b</text>
<rect x="27" y="58" width="321.5" height="18" fill="#3b6ea5"/>
<text x="354.5" y="71">50</text>
</svg>
"""


def test_a_small_chart_to_the_letter():
    assert svg([Chart("decode", "tokens/s", [Bar("a", 100.0), Bar("b", 50.0)])]) == SMALL


def test_an_error_mark_spans_low_to_high_and_sets_the_scale():
    drawn = svg([Chart("t", "ms", [Bar("a", 50.0, 25.0, 100.0)])])
    (mark,) = re.findall(r'<path d="M([\d.]+) [\d.]+v8M[\d.]+ [\d.]+H([\d.]+)M', drawn)
    assert [float(x) for x in mark] == [187.8, 670.0]  # 27 + 643 / 4, 27 + 643
    assert 'width="321.5" height="18"' in drawn


def test_groups_keep_their_colour_and_get_a_legend():
    one = Chart("1", "x", [Bar("a", 1, group="ours"), Bar("b", 2, group="theirs")])
    two = Chart("2", "x", [Bar("c", 3, group="theirs")])
    drawn = svg([one, two])
    fills = re.findall(r'height="18" fill="([^"]+)"', drawn)
    assert fills[0] != fills[1] and fills[1] == fills[2]
    legend = re.findall(r'width="12" height="12" fill="([^"]+)"', drawn)
    assert legend == fills[:2] and ">ours</text>" in drawn and ">theirs</text>" in drawn


def test_text_is_escaped_and_the_file_is_xml(tmp_path):
    write_svg(tmp_path / "a.svg", [Chart("a < b & c", "ms", [Bar("<x>", 0.0)])])
    texts = [each.text for each in ET.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["a < b & c (ms)", "<x>", "0"]


def test_a_wrong_name_or_folder_is_refused(tmp_path):
    with pytest.raises(argparse.ArgumentTypeError):
        svg_path("a.png")
    with pytest.raises(RequestError, match="cannot be written"):
        write_svg(tmp_path / "none" / "a.svg", [])
