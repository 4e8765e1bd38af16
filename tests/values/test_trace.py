"""Traces: adding, grouping, and what sums over pairs say."""

import math
from dataclasses import replace

import pytest
import torch
from builders import pair_error, rounded, stats
from examples import clean
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import sites, traces

from ampcheck.values.formats import FP16
from ampcheck.values.stats import TensorStats, merge
from ampcheck.values.trace import (
    Failure,
    PairError,
    Phase,
    Site,
    Trace,
)


@given(traces, traces, traces)
def test_adding_traces_is_associative_and_has_a_zero(a: Trace, b: Trace, c: Trace) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + Trace() == a == Trace() + a


@given(traces, traces)
def test_the_order_of_ranks_changes_no_sum(a: Trace, b: Trace) -> None:
    assert (a + b).sites == (b + a).sites
    assert (a + b).casts == (b + a).casts
    assert (a + b).not_audited == (b + a).not_audited
    assert (a + b).operations == (b + a).operations


@given(traces, traces)
def test_no_element_is_lost_by_adding_or_grouping(a: Trace, b: Trace) -> None:
    both = a + b
    elements = sum(held.numel for held in a.sites.values()) + sum(held.numel for held in b.sites.values())
    for key in (lambda s: s.module, lambda s: s.op, lambda s: s.phase, lambda s: s.place, lambda s: 0):
        groups = both.by(key)
        assert sum(held.numel for held in groups.values()) == elements
        assert merge(groups.values()) == merge(both.sites.values())


@given(traces)
def test_grouping_keeps_what_is_asked_for_and_nothing_else(trace: Trace) -> None:
    forward = trace.by(lambda site: site.module if site.phase is Phase.FORWARD else None)
    for module, held in forward.items():
        parts = [s for site, s in trace.sites.items() if (site.module, site.phase) == (module, Phase.FORWARD)]
        assert held == merge(parts)
    assert set(forward) == {site.module for site in trace.sites if site.phase is Phase.FORWARD}


def test_the_first_order_and_the_first_module_and_failure_are_kept() -> None:
    made = clean().low
    later = replace(made, sites=dict(reversed(made.sites.items())), failure=Failure("ValueError", "later"))
    assert list((made + later).sites) == list(made.sites)
    assert (made + later).modules == made.modules
    assert (made + later).failure == later.failure
    assert (replace(later, failure=Failure("E", "first")) + later).failure == Failure("E", "first")


@given(sites)
def test_a_place_has_everything_but_the_dtype(site: Site) -> None:
    assert site.place == site._replace(dtype="")
    assert site.location == (f"{site.file}:{site.line}" if site.file else "")


floats = st.floats(-1000, 1000, allow_subnormal=False)


@given(st.lists(floats, min_size=1, max_size=30))
def test_error_measures_agree_with_their_definition(values: list[float]) -> None:
    actual = [rounded(v, FP16) for v in values]
    r, x = torch.tensor(values, dtype=torch.float64), torch.tensor(actual, dtype=torch.float64)
    error = pair_error(values, actual)
    norm = r.norm().item()
    if norm > 1e-100:
        assert math.isclose(error.relative_rms, ((x - r).norm() / norm).item(), rel_tol=1e-9, abs_tol=1e-15)


@given(st.lists(floats, max_size=10), st.lists(floats, max_size=10))
def test_sums_over_pairs_add(a: list[float], b: list[float]) -> None:
    halves = [pair_error(part, [rounded(v, FP16) for v in part]) for part in (a, b)]
    whole = pair_error(a + b, [rounded(v, FP16) for v in a + b])
    added = halves[0] + halves[1]
    for name in PairError.__dataclass_fields__:
        assert math.isclose(getattr(added, name), getattr(whole, name), rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PairError(), 0.0),
        (PairError(sampled=2, error_squares=1.0, error_sum=1.0), math.inf),
        (PairError(sampled=2, nonfinite=2), 0.0),
    ],
    ids=["nothing", "zero reference", "nothing finite"],
)
def test_error_measures_of_nothing(error: PairError, expected: float) -> None:
    assert error.relative_rms == expected


def test_empty_statistics_are_those_of_no_elements() -> None:
    assert stats([]) == TensorStats()
