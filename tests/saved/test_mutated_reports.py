"""Saved reports that someone has changed: each is refused in one message, or shown in every format."""

import copy
import json
import random
import re
from pathlib import Path

import pytest

from ampcheck.compare.comparison import compare_reports
from ampcheck.compare.merge import merge
from ampcheck.errors import ReportError
from ampcheck.renderers import RENDERERS, render
from ampcheck.renderers.comparison_text import to_json
from ampcheck.saved.report_json import from_json

SAVED = sorted(Path(__file__).parent.glob("*.json"))
#: What a value becomes.
WRONG = [
    None, True, -1, 0, 3, 10**6, 10**30, -(10**400), 1e308, 0.5, "", "inf", "nan", "bf16", "float16", "fp32", "fp8",
    "\x1b[31m", "::error::", "\u202e", "x" * 300, "9" * 5000, [], [[]], [None], {}, {"a": 1}, "backward",
    "state", "error",
]  # fmt: skip


def places(value, path=()):
    """Yield the path of every value in a tree; of long lists, of some."""
    yield path
    if isinstance(value, dict):
        for name, held in value.items():
            yield from places(held, (*path, name))
    elif isinstance(value, list):
        for at, held in list(enumerate(value))[:3]:
            yield from places(held, (*path, at))


def mutated(saved, where, rng):
    """Return a copy in which one to three values are replaced, left out, doubled or moved."""
    changed = copy.deepcopy(saved)
    for path in rng.sample(where, rng.choice([1, 1, 2, 3])):
        try:
            holder = changed
            for step in path[:-1]:
                holder = holder[step]
            how = rng.random()
            if how < 0.7:
                holder[path[-1]] = rng.choice(WRONG)
            elif how < 0.85:
                del holder[path[-1]]
            else:
                other = rng.choice(where)
                value = saved
                for step in other:
                    value = value[step]
                holder[path[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
    return changed


def one_line(error):
    assert "\n" not in error.message


def try_out(text, original):
    """Read a report, and show it in every format where that is possible; return whether it was read."""
    try:
        report = from_json(text)
    except ReportError as error:
        one_line(error)
        return False
    for name in RENDERERS:
        assert render(report, name)
    assert to_json(compare_reports(original, report))
    try:
        merged = merge({"a": original, "b": report})
    except ReportError as error:
        one_line(error)
    else:
        assert render(merged, "terminal")
    return True


def fuzz(times, seed):
    rng = random.Random(seed)
    held = [(text := path.read_text(encoding="utf-8"), json.loads(text)) for path in SAVED]
    known = [(from_json(text), saved, [p for p in places(saved) if p]) for text, saved in held]
    read = 0
    for _ in range(times):
        original, saved, where = rng.choice(known)
        text = json.dumps(mutated(saved, where, rng))
        try:
            read += try_out(text, original)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}; the report was {text[:2000]}") from error
    return read


def test_a_changed_report_is_refused_or_shown():
    times = 60
    assert 0 < fuzz(times, seed=0) < times


@pytest.mark.long
def test_ten_thousand_changed_reports_are_refused_or_shown():
    assert 0 < fuzz(10_000, seed=1) < 10_000


@pytest.mark.parametrize("name", ["error_squares", "reference_squares", "sum_squares"])
def test_a_sum_of_squares_below_nothing_is_refused(name):
    text = next(text for path in SAVED if f'"{name}":' in (text := path.read_text(encoding="utf-8")))
    with pytest.raises(ReportError, match="a sum of squares is below 0"):
        from_json(re.sub(rf'("{name}": ?)([0-9])', r"\1-\2", text, count=1))
