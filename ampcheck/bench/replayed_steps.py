"""The test that `harness` runs for every row; pytest reads this file by its path."""

from typing import Any


def test_step(benchmark: Any, timed_row: Any) -> None:
    """Enter the samples of a row."""
    samples, clock, record = timed_row
    benchmark.extra_info["ampcheck"] = record
    clock.enter(benchmark, samples)
    assert benchmark.stats.stats.rounds == len(samples)
