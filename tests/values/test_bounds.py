"""What a loaded value may hold: each field is looked at by its type, and refused in words that name it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import pytest
from examples import REPORTS

from ampcheck.values.bounds import EXPONENT, TEXT, WHOLE, check


class Word(StrEnum):
    """A word."""

    GOOD = "good"


class Place(NamedTuple):
    """A place."""

    file: str
    line: int = 0


@dataclass(frozen=True)
class Held:
    """A value with a field of every kind."""

    name: str = ""
    number: float = 0.0
    whole: int = 0
    log2_scale: int = 0
    amax: float = 0.0
    yes: bool = False
    word: Word = Word.GOOD
    place: Place | None = None
    row: tuple[Place, ...] = ()
    pair: tuple[int, float] = (0, 0.0)
    table: Mapping[str, float] = field(default_factory=dict)


FITS = {
    "name": ["", "x" * TEXT],
    "number": [-1.5, float("inf"), float("nan"), 3, WHOLE],
    "whole": [0, -WHOLE, WHOLE],
    "log2_scale": [-EXPONENT, EXPONENT],
    "amax": [0.0, 1e308, float("inf")],
    "yes": [True],
    "word": [Word.GOOD],
    "place": [None, Place("a.py", 3)],
    "row": [(), (Place("a.py"), Place("b.py", 1))],
    "pair": [(1, 2.0)],
    "table": [{}, {"a": 1.0}],
}
DOES_NOT = {
    "name": [None, 3, "x" * (TEXT + 1), ["a"]],
    "number": ["1", None, True, WHOLE + 1],
    "whole": [1.0, True, WHOLE + 1, 10**400, "1", None],
    "log2_scale": [EXPONENT + 1, -EXPONENT - 1, 1.0],
    "amax": [-1.0, -1, "big"],
    "yes": [1, 0, None, "true"],
    "word": ["good", "bad", None],
    "place": [("a.py", 3), "a.py", Place(3, 3), Place("a.py", 1.5)],
    "row": [None, "ab", (Place(None),), 3],
    "pair": [(1,), (1, 2.0, 3), ("1", 2.0), None],
    "table": [None, [("a", 1.0)], {1: 1.0}, {"a": "b"}, {"a": None}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in FITS for value in FITS[name]])
def test_what_fits_its_type_is_taken(name, value):
    check(replace(Held(), **{name: value}))


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in DOES_NOT for value in DOES_NOT[name]])
def test_what_does_not_fit_is_refused_in_one_short_line(name, value):
    with pytest.raises(ValueError, match=r" is .* and not ") as caught:
        check(replace(Held(), **{name: value}))
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", REPORTS)
def test_reports_that_ampcheck_makes_are_within_bounds(name):
    check(REPORTS[name]())
