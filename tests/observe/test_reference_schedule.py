"""Few recorded steps of a script have FP32 beside them; what the others say is the same without it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import ampcheck
from ampcheck.errors import TargetError
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import Phase


def built():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))
    return net, torch.optim.SGD(net.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0**8)


def steps(watch, number=8, *, factor=lambda _: 1.0, dtype=lambda _: torch.float16, layers=lambda net, _: net):
    """Train for some steps, watched; return the recorded ones and the report."""
    net, optimizer, scaler = built()
    with watch(net, optimizer, scaler) as watching:
        for step in range(number):
            x, y = torch.randn(4, 1, 8, 8) * factor(step), torch.arange(4)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype(step)):
                loss = nn.functional.cross_entropy(layers(net, step)(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return watching._session.watcher.tape.recorded, watching.report()


def third(*held, **options):
    return ampcheck.watch(*held, every=3, first=1, **options)


def all_beside(*held):
    return third(*held, reference="all")


def numbers(recorded):
    """Return the steps recorded in full, and the others."""
    full = [one.step for one in recorded if one.beside is not None]
    return full, [one.step for one in recorded if one.beside is None]


@pytest.mark.parametrize(("first", "every", "in_turn"), [(2, 50, 1), (1, 3, 1), (0, 7, 1), (2, 5, 2)])
def test_fp32_runs_beside_the_first_steps_and_ever_more_rarely(first, every, in_turn):
    schedule = Schedule(first, every)
    recorded = [step for step in range(5000) if schedule.wants(step, in_turn)]
    powers = {every * 4**k for k in range(8)} | set(range(max(first, 1)))
    assert [step for step in recorded if schedule.compares(step, in_turn)] == [
        step for step in recorded if step // in_turn in powers
    ]
    for asked in (Schedule(first, every, beside="all"), Schedule(steps=frozenset(recorded))):
        assert all(asked.compares(step, in_turn) for step in recorded)


def test_where_all_matched_the_first_stands_for_those_after_it():
    for asked in (Schedule(3, 50), Schedule(1, 50)):
        recorded = [step for step in range(1000) if asked.wants(step)]
        assert [step for step in recorded if asked.compares(step, matches_reference=True)] == [0, 200, 800]
    assert Schedule(3, 50, beside="all").compares(1, matches_reference=True)
    assert Schedule(steps=frozenset({0, 1})).compares(1, matches_reference=True)


def in_bf16(*held):
    return ampcheck.watch(*held, every=3)


@pytest.mark.parametrize(
    ("change", "full"),
    [
        ({}, [0]),
        ({"dtype": lambda _: torch.float16}, [0, 1, 3]),  # where a later step may overflow
        (
            {"factor": lambda step: math.inf if step == 0 else 1.0},
            [0, 1, 3],
        ),  # no gradient is like FP32's yet
        ({"layers": lambda net, _: Asleep(net)}, [0, 1, 3]),
        ({"layers": lambda net, _: Magnifying(net)}, [0, 1, 3]),
    ],
    ids=["at ease", "fp16", "nothing known", "asleep", "off"],
)
def test_only_a_first_step_that_leaves_no_question_stands_for_the_next(change, full):
    recorded, _ = steps(in_bf16, **{"dtype": lambda _: torch.bfloat16, **change})
    assert numbers(recorded)[0] == full
    # What it says of itself, by hand: every parameter has a gradient, and it is about FP32's.
    first = recorded[0].beside.rows.values()
    norm = sum(row[1] for row in first)
    near = sum(row[0] for row in first) <= 0.15**2 * norm and all(row[1] > 0 for row in first)
    assert recorded[0].matches_reference == (near and recorded[0].precision == "bf16")
    assert recorded[0].matches_reference == (full == [0])


@pytest.mark.parametrize(("share", "error", "near"), [(0.1, 0.5, False), (0.1, 0.1, True), (1e-4, 0.5, True)])
def test_a_part_that_is_off_leaves_a_question_however_small_beside_the_others(share, error, near):
    (first, *_), _ = steps(in_bf16, dtype=lambda _: torch.bfloat16)
    norm = sum(row[1] for row in first.beside.rows.values()) * share**2
    head = {"head.weight": (error**2 * norm, norm, 0.0, 0.0, 100.0)}
    with_head = replace(first, beside=replace(first.beside, rows=first.beside.rows | head))
    assert first.matches_reference
    assert with_head.matches_reference is near


class Asleep(nn.Module):
    """Multiplies by a parameter that begins at zero: nothing before it has a gradient yet."""

    gain = None

    def __init__(self, net):
        super().__init__()
        Asleep.gain = Asleep.gain if Asleep.gain is not None else nn.Parameter(torch.zeros(()))
        self.net, self.factor = net, Asleep.gain

    def forward(self, x):
        return self.net(x) * self.factor


class Magnifying(nn.Module):
    """Keeps the differences of numbers that lie too close together for bf16."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        near = self.net(x) * 1e-3 + 1.0
        return (near.bfloat16() - 1.0) * 1e3


def test_a_step_says_the_same_with_and_without_fp32_beside_it():
    few, _ = steps(third)
    every, report = steps(all_beside)
    assert numbers(few) == ([0, 3], [6])
    assert numbers(every) == ([0, 3, 6], [])
    alone, full = few[-1], every[-1]
    parameters = {site for site in full.low.sites if site.phase is Phase.STATE and "grad" not in site.slot}
    assert dict(alone.low.sites) == {k: v for k, v in full.low.sites.items() if k not in parameters}
    for part in ("casts", "modules", "operations", "constants", "steps"):
        assert getattr(alone.low, part) == getattr(full.low, part), part
    assert (alone.precision, alone.log2_scale, alone.losses[0]) == ("fp16", 8, full.losses[0])
    assert math.isnan(alone.losses[1])
    assert "3 of 8 steps recorded in full; the others were only counted" in report.notes


def test_what_a_scale_is_advised_by_is_known_of_all_recorded_steps():
    _, few = steps(third)
    _, every = steps(all_beside)
    assert few.low.steps == every.low.steps
    assert len(few.low.steps) == 3
    assert len(few.reference.steps) == 2
    assert "2 of 8 steps recorded in full, 1 without a reference; the others were only counted" in few.notes


def with_head():
    head = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return lambda net, step: nn.Sequential(net, head) if step == 6 else net


@pytest.mark.parametrize(
    "options",
    [
        {"factor": lambda step: 1e30 if step == 6 else 1.0},
        {"dtype": lambda step: torch.bfloat16 if step >= 6 else torch.float16},
        {"layers": with_head()},
        {"factor": lambda step: 1e-6 if step == 6 else 1.0},  # little of the first gradients is left in fp16
    ],
    ids=["overflow", "precision", "layers", "zeros"],
)
def test_after_what_is_new_the_next_step_is_looked_at_closer(options):
    recorded, _ = steps(third, **options)
    assert numbers(recorded) == ([0, 3, 7], [6])


def test_once_the_scale_has_settled_a_step_is_looked_at_closer():
    recorded, report = steps(
        lambda *held: ampcheck.watch(*held, every=3), 12, factor=lambda step: 1e30 if step < 5 else 1.0
    )
    assert numbers(recorded) == ([0, 1, 3, 6], [9])  # 5 is the first that trains
    assert [one.overflowed for one in recorded] == [True] * 3 + [False] * 2
    assert report.log2_scale == recorded[-1].log2_scale
    # The forward overflowed in the first steps: no loss scale helps there, so these steps count.
    assert report.outcomes["settled"].loss_nonfinite


def test_steps_that_a_search_for_the_scale_skips_do_not_count():
    net, optimizer, _ = built()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    with third(net, optimizer, scaler) as watching:
        for _ in range(40):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(net(torch.randn(4, 1, 8, 8)), torch.arange(4))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    report = watching.report()
    assert report.loop.scales[0].skipped
    assert any(one.overflowed for one in watching._session.watcher.tape.recorded)
    assert report.outcomes["settled"].finite
    assert report.worst is not Severity.ERROR


def test_a_precision_that_comes_late_is_what_the_report_is_about():
    recorded, report = steps(third, 20, dtype=lambda step: torch.bfloat16 if step >= 7 else torch.float16)
    assert numbers(recorded) == ([0, 3, 10, 12], [6, 9, 15, 18])
    assert report.precision == "bf16"
    assert {step.loss for step in report.low.steps} == {
        one.losses[0] for one in recorded if one.precision == "bf16"
    }


def test_a_wrong_word_is_told():
    with pytest.raises(TargetError, match="expected reference to be few or all, got 'none'"):
        ampcheck.watch(reference="none")
