"""Numbers and names as people read them; doctests of the pure modules run here too."""

import doctest
import importlib
import math
import unicodedata

import pytest
from examples import NASTY
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.renderers.drawing import BLOCKS, TRACE, bars, cells, fitted, module_name, ticks
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import (
    clean,
    exponent_range,
    location,
    measure,
    percent,
    place,
    plural,
    short_count,
    size,
)


@pytest.mark.parametrize(
    "name", ["values.formats", "values.stats", "values.wording", "diagnose.landscape", "renderers.drawing"]
)
def test_documented_examples_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"ampcheck.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


@given(st.floats(0, 1))
def test_percent_never_hides_something_or_claims_all(share: float) -> None:
    text = percent(share)
    assert (text == "0 %") == (share == 0)
    assert (text == "100 %") == (share == 1)
    value = float(text.strip("<>%").strip())
    assert abs(value - 100 * share) <= max(0.011, 0.06 * value)
    assert len(text) <= 7


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.00004, "<0.01 %"), (0.0001, "0.01 %"), (0.0099, "0.99 %"), (0.99, "99.0 %"), (0.9995, ">99.9 %"),
     (12.5, "1,250 %"), (math.inf, "inf"), (math.nan, "nan")],
)  # fmt: skip
def test_percent_at_its_borders(share: float, text: str) -> None:
    assert percent(share) == text


@given(st.integers(0, 10**20))
def test_short_counts_and_sizes_are_short_and_near(number: int) -> None:
    for text, units in ((short_count(number), "kMGTPE"), (size(number).removesuffix("B").strip(), "kMGTPE")):
        digits = text.rstrip(units).strip().replace(",", "")
        unit = text[len(text.rstrip(units)) :]
        value = float(digits) * 1000.0 ** (units.find(unit) + 1 if unit else 0)
        assert math.isclose(value, number, rel_tol=0.05, abs_tol=0.5)
    assert len(short_count(min(number, 10**18))) <= 5


texts = st.one_of(st.text(max_size=60), st.sampled_from(NASTY))


@given(texts)
def test_cleaned_text_is_one_visible_line(text: str) -> None:
    assert not [char for char in clean(text) if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert clean(clean(text)) == clean(text)
    assert clean(text).splitlines() in ([], [clean(text)])
    clean(text).encode()


@pytest.mark.parametrize(
    ("dirty", "tidy"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://evil\x07link\x1b]8;;\x07", "link"),
        ("a\r\nb\tc", "a b c"),
        ("a\u202eb\u200bc\x00d\x9b", "abcd"),
        ("[red]x[/red]", "[red]x[/red]"),
    ],
)
def test_what_a_terminal_would_obey_is_gone(dirty: str, tidy: str) -> None:
    assert clean(dirty) == tidy


@given(texts.map(clean), st.integers(1, 50))
def test_shortened_names_fit_and_keep_their_ends(text: str, width: int) -> None:
    for shorter in (fitted(text, width), module_name(text, width)):
        assert cells(shorter) <= max(width, 0)
    if cells(text) <= width:
        assert fitted(text, width) == text


@pytest.mark.parametrize(
    ("width", "name"),
    [
        (50, "model.encoder.layers.11.self_attn.out_proj"),
        (41, "model…layers.11.self_attn.out_proj"),
        (28, "model…11.self_attn.out_proj"),
        (15, "model…out_proj"),
        (10, "…out_proj"),
        (6, "…proj"),
    ],
)
def test_module_names_keep_their_last_parts(width: int, name: str) -> None:
    short = module_name("model.encoder.layers.11.self_attn.out_proj", width)
    assert cells(short) <= width
    assert short == name or width == 6
    assert module_name("", 10) == "(root)"


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_bars_are_blank_for_zero_alone_and_full_for_the_largest(counts: list[int]) -> None:
    drawn = bars(counts, sum(counts))
    assert [bar == " " for bar in drawn] == [count == 0 for count in counts]
    if any(counts):
        assert drawn[counts.index(max(counts))] == BLOCKS[-1]
        heights = [(TRACE + BLOCKS).find(bar) for bar in drawn]
        ordered = sorted(zip(counts, heights, strict=True))
        assert [height for _, height in ordered] == sorted(heights)


def test_ticks_leave_room() -> None:
    assert ticks([(0, "2^-40"), (5, "2^-36"), (9, "2^-32")], 20) == "2^-40    2^-32"
    assert ticks([(2, "2^0"), (18, "2^16")], 20) == "  2^0"


def test_ranges_say_when_they_leave_fp32() -> None:
    assert exponent_range(TensorStats()) == ""
    assert exponent_range(TensorStats(3, (1,))) == "3"
    assert exponent_range(TensorStats(-127, (1, *[0] * 254, 1))) == "<-126…>127"


def test_places_and_numbers_of_findings() -> None:
    site = Site("", "mm", "output", Phase.FORWARD, "float16")
    assert place(site) == "mm in (root)"
    assert place(Site("a\n", "", "param[w]", Phase.STATE, "float16")) == "param[w] of a"
    assert location("m\x1b[0m.py", 3) == "m.py:3"
    assert location("", 3) == ""
    assert plural(1, "step") == "1 step"
    assert plural(1200, "step") == "1,200 steps"
    assert measure("lost_fraction", 0.5) == "lost 50 %"
    assert measure("log2_scale", 9) == "scale 2^9"
    assert measure("suggested_log2_scale", 9.5) == "suggested log2 scale 9.5"
    assert measure("amax", 1.25e12) == "amax 1.25e+12"
    assert measure("bias", -0.1234567) == "bias -0.123"
    assert measure("elements", math.inf) == "elements inf"
    assert measure("cast_bytes", math.nan) == "cast bytes nan"
