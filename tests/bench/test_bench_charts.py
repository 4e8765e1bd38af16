"""The charts of a bench: lines, labels and numbers that are told apart, without colours too."""

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_bench_result import example

from ampcheck.bench import svg
from ampcheck.bench.result import Case
from ampcheck.bench.shapes import DARK, LIGHT, spread


@pytest.mark.parametrize("draw", [svg.ratios, svg.memory, svg.curves, svg.metrics])
def test_charts_are_xml(draw):
    assert ET.fromstring(draw(with_metrics())).tag == "svg"
    assert draw(Case(1)) == ""


def with_metrics():
    """Return a case whose precisions come to the same metric at every look."""
    case = example().cases[0]
    seen = {"metrics": (0.25, 0.5, 0.75), "metric_steps": (4, 7, 10)}
    rows = [
        dataclasses.replace(row, courses=tuple(dataclasses.replace(course, **seen) for course in row.courses))
        for row in case.rows
    ]
    return dataclasses.replace(case, rows=tuple(rows))


def test_lines_that_lie_on_each_other_are_told_apart_without_colours():
    drawn = ET.fromstring(svg.metrics(with_metrics()))
    lines_ = [node.get("class").split()[-1] for node in drawn.iter("polyline")]
    assert lines_ == ["line0", "line1", "line2"], "a dash pattern for each"
    marks = [node for node in drawn if "point" in node.get("class", "")]
    assert len(marks) == 3 * 3 + 3, "at every look, and at every name"
    names = {
        node.text: float(node.get("y")) for node in drawn.iter("text") if node.text in {"fp32", "fp16", "amp"}
    }
    places = sorted(names.values())
    assert len(places) == 3
    assert min(b - a for a, b in itertools.pairwise(places)) >= 16
    numbers = {node.text for node in drawn.iter("text")}
    assert {"4", "10", "0.5"} <= numbers
    assert not any("." in step for step in numbers if re.fullmatch(r"[0-9.]+", step) and float(step) > 1)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9))
def test_labels_keep_their_order_and_their_distance(wanted):
    found = spread(wanted, 17, 0, 100)
    room = min(17, 100 / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    assert all(found[b] - found[a] >= room - 1e-9 for a, b in itertools.pairwise(order))
    assert min(found) >= -1e-9
    assert max(found) <= 100 + 1e-9


@pytest.mark.parametrize(("parts", "number"), [(LIGHT, "#ffffff"), (DARK, "#14181f")])
def test_numbers_on_the_parts_of_a_bar_can_be_read(parts, number):
    """WCAG asks for a contrast of 4.5."""

    def light(color):
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    for color in parts:
        dark, bright = sorted((light(color), light(number)))
        assert bright / dark >= 4.5, color
