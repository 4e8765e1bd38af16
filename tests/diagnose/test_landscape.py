"""The exponent landscape: every element in the column and the zone where it belongs."""

from itertools import pairwise

import pytest
from builders import Layer, report, stats
from examples import REPORTS, clean, many_layers
from hypothesis import given
from hypothesis import strategies as st
from test_tables import paired, tensors

from ampcheck.diagnose.landscape import Zone, landscape, merged
from ampcheck.values.formats import FP16
from ampcheck.values.report import Report, low_tensors
from ampcheck.values.stats import TensorStats, merge
from ampcheck.values.trace import Phase, Site, Trace

BACKWARD = Phase.BACKWARD


@given(tensors, st.integers(0, 8), st.integers(30, 60))
def test_zones_hold_what_the_statistics_count(
    gradients: dict[str, list[float]], scale: int, width: int
) -> None:
    picture = landscape(paired(gradients, scale), BACKWARD, max_columns=width)
    assert len(picture.columns) <= width
    for row in picture.rows:
        held = stats([v for module in row.modules for v in gradients[module]])
        assert sum(row.counts) == row.nonzero == held.nonzero
        assert (
            row.share(Zone.UNDERFLOWED, picture.columns) == held.underflowed(FP16, scale).low / held.nonzero
        )
        over = sum(c for e, c in held.exponents() if e + scale > FP16.max_exponent)
        assert row.share(Zone.OVERFLOW, picture.columns) == over / held.nonzero
    assert {row.modules[0] for row in picture.rows} == {m for m, values in gradients.items() if any(values)}


@given(tensors, st.integers(0, 8))
def test_columns_are_in_order_without_gaps_inside_a_zone(
    gradients: dict[str, list[float]], scale: int
) -> None:
    columns = landscape(paired(gradients, scale), BACKWARD).columns
    for left, right in pairwise(columns):
        assert left.low <= left.high < right.low
        if left.zone is right.zone:
            assert right.low == left.high + 1
    assert [column.zone for column in columns] == sorted((c.zone for c in columns), key=list(Zone).index)


def test_edges_are_those_of_the_format_at_the_used_scale() -> None:
    columns = landscape(clean(), BACKWARD).columns
    firsts = {zone: min(c.low for c in columns if c.zone is zone) for zone in Zone}
    assert firsts[Zone.SUBNORMAL] == -25 - 16  # half the smallest subnormal still rounds up to it
    assert firsts[Zone.NORMAL] == -14 - 16
    assert firsts[Zone.OVERFLOW] == 16 - 16
    forward = landscape(clean(), Phase.FORWARD).columns
    assert min(c.low for c in forward if c.zone is Zone.NORMAL) == -14


def test_what_a_wide_format_cannot_lose_is_not_drawn() -> None:
    columns = landscape(REPORTS["bf16"](), BACKWARD).columns
    assert {column.zone for column in columns} == {Zone.NORMAL}
    assert len(columns) < 40


def test_a_few_far_out_elements_do_not_squeeze_the_others_and_keep_their_zone() -> None:
    values = [1.0, 1.5, 0.3] * 20_000
    picture = landscape(paired({"a": [*values, 2.0**-120, 2.0**-121]}), BACKWARD, max_columns=56)
    (row,) = picture.rows
    assert all(column.low == column.high for column in picture.columns)
    assert row.counts[0] == 2
    assert picture.columns[0].zone is Zone.UNDERFLOWED
    assert sum(row.counts) == len(values) + 2


def test_a_few_elements_beyond_a_wide_format_keep_a_column_of_their_own() -> None:
    site = Site("a", "mm", "output", BACKWARD, "bfloat16")
    held = TensorStats.from_counts({-140: 2, -130: 1, 0: 100_000, 1: 100_000, 128: 3})
    made = Report("t", "bf16", 0, Trace({site: held}), Trace({site: held}))
    picture = landscape(made, BACKWARD)
    assert [column.zone for column in picture.columns] == [
        Zone.UNDERFLOWED,
        Zone.SUBNORMAL,
        Zone.NORMAL,
        Zone.NORMAL,
        Zone.OVERFLOW,
    ]
    assert picture.rows[0].counts == (2, 1, 100_000, 100_000, 3)


def test_rows_are_in_order_of_execution_although_the_backward_runs_in_reverse() -> None:
    picture = landscape(clean(), BACKWARD)
    executed = list(dict.fromkeys(site.module for site in low_tensors(clean(), Phase.FORWARD)))
    assert [row.label for row in picture.rows] == executed


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
@pytest.mark.parametrize("limit", [1, 7, 20, 100])
def test_merging_rows_loses_no_layer_and_no_element(phase: Phase, limit: int) -> None:
    picture = landscape(many_layers(), phase, max_rows=limit)
    assert len(picture.rows) <= limit
    modules = [module for row in picture.rows for module in row.modules]
    assert modules == list(dict.fromkeys(site.module for site in low_tensors(many_layers(), Phase.FORWARD)))
    whole = merge(low_tensors(many_layers(), phase).values())
    assert sum(row.nonzero for row in picture.rows) == whole.nonzero


def test_layers_are_merged_along_their_paths() -> None:
    picture = landscape(many_layers(), BACKWARD, max_rows=20)
    assert [row.label for row in picture.rows] == [f"model.encoder.layers.{i}" for i in range(12)]


def test_a_flat_stack_is_cut_into_runs() -> None:
    groups = merged([f"net.{i}" for i in range(7)], 3)
    assert groups == [
        ("net.0 … 2", ["net.0", "net.1", "net.2"]),
        ("net.3 … 5", ["net.3", "net.4", "net.5"]),
        ("net.6", ["net.6"]),
    ]
    assert merged(["a", "b", "c", "d", "e"], 2) == [("a … c", ["a", "b", "c"]), ("d … e", ["d", "e"])]


paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join)


@given(st.lists(paths, unique=True, max_size=40), st.integers(1, 12))
def test_merging_keeps_every_path_once_within_the_limit(modules: list[str], limit: int) -> None:
    groups = merged(modules, limit)
    assert len(groups) <= limit
    assert sorted(path for _, members in groups for path in members) == sorted(modules)


def test_nothing_to_draw_is_an_empty_picture() -> None:
    picture = landscape(report([Layer("a", dtype="float32")]), BACKWARD)
    assert (picture.columns, picture.rows) == ((), ())
    zeros = paired({"a": [0.0, 0.0]})
    assert landscape(zeros, BACKWARD).rows == ()
