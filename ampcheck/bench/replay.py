"""Samples measured elsewhere, entered into pytest-benchmark through its public door: a timer and pedantic rounds."""

import math
import time
from collections.abc import Sequence
from typing import Any


class ReplayClock:
    """A timer for pytest-benchmark: a real one, until it is given samples to play back one after another."""

    #: What pytest-benchmark writes into its JSON.
    __name__ = "ampcheck_replay"

    def __init__(self) -> None:
        """Start as a real clock."""
        self._left: list[float] = []
        self._running = False

    def __call__(self) -> float:
        """Return the time: zero at the start of a round, the sample at its end."""
        if not self._left:
            return time.perf_counter()
        if not self._running:
            self._running = True
            return 0.0
        self._running = False
        return self._left.pop(0)

    def enter(self, benchmark: Any, samples: Sequence[float]) -> None:
        """Let a benchmark fixture measure these seconds, a round each; once a test."""
        self._left, self._running = list(samples), False
        try:
            benchmark.pedantic(lambda: None, rounds=len(samples), iterations=1, warmup_rounds=0)
        finally:
            self._left = []


def strict(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record that strict JSON can hold: what is no finite number becomes None."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
