"""What a step is off by is compared with what rounding does in that step, not in another one of larger gradients."""

from types import SimpleNamespace

import pytest

from ampcheck.run import script_coverage, script_outcomes
from ampcheck.run.script_outcomes import is_explained
from ampcheck.values.doubts import DoubtKind
from ampcheck.values.outcome import HARM_ERROR, Outcome
from ampcheck.values.parts import by_chance


def step(error, rounded):
    """A step that is off, and how far it is with rounded weights alone; None where that was not tried."""
    beside = SimpleNamespace(error=error, rows={}, rounded={} if rounded is None else {"weight": rounded})
    beside.dead_rows = {}
    return SimpleNamespace(beside=beside)


@pytest.fixture(autouse=True)
def plain_numbers(monkeypatch):
    """Let a step's outcome be its error alone."""
    monkeypatch.setattr(script_outcomes, "by_chance", lambda _: set())
    monkeypatch.setattr(script_outcomes, "_rows", lambda _: {})
    monkeypatch.setattr(
        script_outcomes, "outcome_of_step", lambda beside, *_: Outcome(0, grad_error=beside.error)
    )
    monkeypatch.setattr(
        script_outcomes, "_rounding", lambda beside: Outcome(0, grad_error=beside.rounded["weight"])
    )


FIRST, LATE = 0.01, 2 * HARM_ERROR


@pytest.mark.parametrize(("late", "explained"), [(LATE, True), (FIRST, False), (None, False)])
def test_a_late_step_has_a_baseline_of_its_own(late, explained):
    steps = [step(FIRST, FIRST), step(LATE, late)]
    found = script_outcomes.script_outcomes(steps)
    assert found["settled"].grad_error == LATE
    assert found["rounded"].grad_error == (FIRST if late is None else late)
    assert is_explained(found["settled"], steps[1].beside, steps[0].beside) is explained


def test_what_rounding_does_not_explain_comes_before_what_it_does():
    steps = [step(LATE, LATE), step(0.8 * LATE, FIRST)]
    found = script_outcomes.script_outcomes(steps)
    assert (found["settled"].grad_error, found["rounded"].grad_error) == (0.8 * LATE, FIRST)


LITTLE, WELL = 1.1 * HARM_ERROR, 0.5 * HARM_ERROR


@pytest.mark.parametrize(
    ("errors", "harmed"),
    [
        ([LITTLE, *[WELL] * 8], False),
        ([LITTLE, *[WELL] * 7], True),  # too few follow to tell
        ([*[WELL] * 8, LITTLE], True),  # it may grow
        ([LITTLE] * 9, True),  # it stays
        ([2.5 * HARM_ERROR, *[WELL] * 12], True),  # it is more than a little
    ],
)
def test_one_step_of_many_that_is_a_little_off_is_no_harm(errors, harmed):
    steps = [step(error, None) for error in errors]
    for number, one in enumerate(steps):
        one.step = 10 * number
    assert script_outcomes.script_outcomes(steps)["settled"].harmed is harmed
    # Nor is it forgotten: the report names it.
    said = [*script_coverage._passing(steps)]
    assert [one.startswith("the gradient of step 0 is 16 % off") for one in said] == (
        [] if harmed else [True]
    )


def test_a_part_that_is_off_does_not_pass(monkeypatch):
    monkeypatch.setattr(
        script_outcomes,
        "outcome_of_step",
        lambda beside, *_: Outcome(
            0, grad_error=beside.error, parts={"head": 0.5} if beside.error == LITTLE else {}
        ),
    )
    found = script_outcomes.script_outcomes([step(error, None) for error in (LITTLE, *[WELL] * 8)])
    assert found["settled"].parts == {"head": 0.5}


def delivered(off, norm=1.0):
    """A step whose optimizer is given a number that is off by so much, beside a weight that is right."""
    rows = {".temperature": (off**2 * norm**2, norm**2, 0, 0, 1), "layer.weight": (1e-6, 1.0, 0, 0, 64)}
    delivery = SimpleNamespace(rows=rows, second={}, places={}, kept={}, zeroed_at=("", 0))
    beside = SimpleNamespace(
        delivery=delivery, error=FIRST, rounded={}, taken=(), by_zero=(), touched_at=("script.py", 7)
    )
    beside.added = beside.hidden = None
    return SimpleNamespace(beside=beside)


@pytest.mark.parametrize(
    ("steps", "harms"),
    [
        (
            [delivered(0.33, 0.01), *[delivered(0.002)] * 3],
            False,
        ),  # its gradient is nearly nothing in that step
        ([delivered(0.33)] * 4, True),
        ([delivered(0.33, 0.01)], True),  # nothing tells otherwise
    ],
)
def test_a_number_that_is_off_by_chance_in_a_step_is_not_changed_on_its_way(monkeypatch, steps, harms):
    monkeypatch.setattr(script_outcomes, "by_chance", by_chance)
    found = script_outcomes.script_doubts(steps)
    assert [(one.kind, one.line) for one in found[:1]] == ([(DoubtKind.CHANGED, 7)] if harms else [])
