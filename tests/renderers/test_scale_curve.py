"""The loss scale over the steps of a loop: the curve says what its events say, in every format that draws it."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from math import isfinite, log2

import pytest
from builders import finding
from examples import clean
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_strategies import loops

from ampcheck.renderers import RENDERERS, html, markdown, render
from ampcheck.renderers.scale_curve import HEIGHT, WIDTH, course_svg, curve
from ampcheck.renderers.words import corrected
from ampcheck.values.loop import Cause, Loop, LoopObject, ScaleEvent
from ampcheck.values.trace import Phase, Site

SVG = "{http://www.w3.org/2000/svg}"
SITE = Site("net", "addmm", "output", Phase.BACKWARD, "float16", "model.py", 7)


def looped(scales, steps=40, first=2.0**16):
    """Return a loop whose scale takes these values, each at a step of its own; a fall is a skipped step."""
    cause = Cause("net.w", "net", "optimizer 1", "addmm", "model.py", 7, 2)
    before, events = first, []
    for index, after in enumerate(scales):
        fell = after < before
        events.append(ScaleEvent(3 * index, "scaler 1", before, after, fell, cause if fell else None))
        before = after
    things = (LoopObject("scaler 1", "GradScaler", {"growth_interval": 3, "device": ""}, "train.py", 5),)
    return Loop(
        things=things,
        scales=tuple(events),
        first_scales={"scaler 1": first},
        steps=steps,
        recorded=(0,),
    )


def corners(path):
    """Return the points of a path of M, H and V, as a browser draws it."""
    x = y = 0.0
    spots = []
    for letter, numbers in re.findall(r"([MHV])([-\d. ]+)", path):
        values = [float(number) for number in numbers.split()]
        x = values[0] if letter in "MH" else x
        y = values[-1] if letter in "MV" else y
        spots.append((x, y))
    return spots


def lines(text):
    root = ET.fromstring(text)
    return [node.get("d") for node in root.iter() if node.get("class") == "line"]


@given(st.lists(st.integers(-20, 30), min_size=1, max_size=12))
def test_the_curve_stands_at_each_scale_for_as_many_steps_as_it_held(exponents):
    made = looped([2.0**exponent for exponent in exponents])
    (path,) = lines(curve(made, "scaler 1"))
    spots = corners(path)
    left, right = spots[0][0], spots[-1][0]
    heights = dict.fromkeys(y for _, y in spots)
    by_height = sorted(heights, reverse=True)
    levels = sorted({16, *exponents})
    assert len(by_height) == len(levels)
    for number in range(40):  # a witness: replay the events and look the height up
        scale = [2.0**16, *(event.after for event in made.scales if event.step < number)][-1]
        x = left + (right - left) * (number + 0.5) / max(40, 3 * len(exponents) - 2)
        drawn = [b for (a, _), (c, b) in pairwise(spots) if a <= x < c]
        assert drawn == [by_height[levels.index(round(log2(scale)))]]


def test_a_scale_that_never_changed_has_no_curve_and_is_named_all_the_same():
    made = replace(clean(), loop=looped([]))
    assert curve(made.loop, "scaler 1") is None
    assert course_svg(made) == ""
    assert "2^16 throughout" in html.render(made)
    assert "loss scale of scaler 1: 2^16 throughout" in markdown.render(made)


def test_skipped_steps_are_marked_and_their_cause_is_told():
    made = replace(clean(), loop=looped([2.0**15, 2.0**14, 2.0**15]))
    picture = course_svg(made)
    (marks,) = re.findall(r'class="skips" d="([^"]*)"', picture)
    assert marks.count("M") == 2 == made.loop.skipped
    for text in (html.render(made), markdown.render(made)):
        assert "40 steps seen, 1 recorded in full, 2 skipped" in text
        assert "growth_interval=3" in text
        assert "device=" not in text  # a setting without a value says nothing
        assert "model.py:7" in text
        assert "2^16 → 2^15" in text
    assert "## Training loop" not in markdown.render(clean())
    assert 'id="loop"' not in html.render(clean())


def test_what_is_not_shown_of_a_long_course_is_counted():
    many = looped([2.0 ** (16 + index % 2) for index in range(1, 6001)])
    made = replace(clean(), loop=many)
    assert f"and {6000 - markdown.LIMITS['loop']:,} more changes" in markdown.render(made)
    assert "and 990 more, in the JSON report" in html.render(made)
    assert "<summary>5,990 more changes</summary>" in html.render(made)


@settings(max_examples=40, deadline=None)
@given(loops())
def test_every_loop_is_shown_inside_of_its_box(loop):
    made = replace(clean(), loop=loop)
    for form in ("terminal", "markdown", "html"):
        assert render(made, form) == render(made, form)
    for label in loop.first_scales:
        drawn = curve(loop, label)
        assert (drawn is None) == all(event.scaler != label for event in loop.scales)
        for x, y in corners(lines(drawn)[0]) if drawn else ():
            assert isfinite(x)
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


@pytest.mark.parametrize("form", sorted(set(RENDERERS) - {"csv"}))
def test_corrected_lines_stand_wherever_findings_do(form):
    fixed = finding(SITE, code="AMP401", fix=("if last_micro_batch:", "    scaler.update()  # once\x1b[31m"))
    assert corrected(fixed) == ["if last_micro_batch:", "    scaler.update()  # once"]
    text = render(replace(clean(), findings=(fixed,)), form)
    assert "if last_micro_batch:" in text
    assert text.count("scaler.update()  # once") == 1


def test_a_page_of_markdown_shows_the_course_that_lies_beside_it():
    fixed = finding(SITE, fix=("if last:", "    scaler.update()"))
    made = replace(clean(), loop=looped([2.0**15]), findings=(fixed,))
    text = markdown.render(made, {"course": "x.course.svg"})
    assert "```python\nif last:\n    scaler.update()\n```" in text
    assert "](<x.course.svg>)" in text
    assert "course" in markdown.pictures(made)
    assert "course" not in markdown.pictures(clean())
