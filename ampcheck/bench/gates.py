"""Gates: what a precision has to keep to. All are ratios to FP32 of the same run, as machines differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from ampcheck.bench.result import BASE, Bench, Case, Row
from ampcheck.bench.verdicts import judgement, speed


@dataclass(frozen=True, slots=True)
class Gates:
    """Limits; None is no limit."""

    min_speedup: float | None = None  #: the lower end of the interval has to reach it
    max_memory: float | None = None  #: of the peak on CUDA over FP32's
    max_loss: float | None = None  #: by which training may end above FP32, as a share of FP32's

    def broken(self, bench: Bench, case: Case, row: Row) -> Iterator[str]:
        """Yield a sentence for each limit a row breaks; what was not measured breaks none."""
        if row.precision == BASE:
            return
        fast, memory = speed(case, row), case.memory_ratio(row)
        if self.min_speedup is not None and fast is not None and fast.interval.low < self.min_speedup:
            yield (
                f"{row.precision} is {fast.interval.estimate:.2f} times as fast as FP32 "
                f"[{fast.interval.low:.2f}, {fast.interval.high:.2f}], expected at least {self.min_speedup:g}"
            )
        if self.max_memory is not None and memory is not None and memory > self.max_memory:
            yield f"{row.precision} needs {memory:.2f} times the memory of FP32, expected at most {self.max_memory:g}"
        if self.max_loss is not None:
            yield from self._loss(bench, case, row)

    def _loss(self, bench: Bench, case: Case, row: Row) -> Iterator[str]:
        found = judgement(bench, case, row)
        if found is None or self.max_loss is None:
            return
        share = (
            found.difference.estimate / abs(found.reference) if found.reference else found.difference.estimate
        )
        if found.word in {"fails", "stuck"} or not isfinite(share):
            yield f"training in {row.precision} fails in {found.failed or found.seeds} of {found.seeds} runs"
        elif share > self.max_loss:
            yield (
                f"{row.precision} trains to a {found.measure} of {found.own:.4g}, FP32 to {found.reference:.4g}: "
                f"{share:.1%} worse, expected at most {self.max_loss:.1%}"
            )


def broken(gates: Gates, bench: Bench) -> tuple[str, ...]:
    """Return what breaks the gates, each with its case."""
    return tuple(
        f"{case.key}: {text}"
        for case in bench.cases
        for row in case.rows
        for text in gates.broken(bench, case, row)
    )
