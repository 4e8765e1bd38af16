"""Rows of steps that are compared once more: which of them count."""

from types import SimpleNamespace

import pytest

from ampcheck.observe.script.rows_carried import CarriedOn


@pytest.mark.parametrize(
    ("low", "kept"), [(2.0, True), (1.1, False), (0.5, False), (float("nan"), True), (float("inf"), True)]
)
def test_a_later_row_counts_where_fp32_does_better_or_nobody_can_tell(low, kept):
    carried = CarriedOn()
    carried._later = {10: 12}
    steps = [SimpleNamespace(step=step, beside=object(), losses=(low, 1.0)) for step in (3, 10, 11, 12, 20)]
    assert [one.step for one in carried.worse_off(steps)] == [3, 10, *([11, 12] if kept else []), 20]
