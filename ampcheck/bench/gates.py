"""Gates: what a precision has to keep to. All are ratios to FP32 of the same run, as machines differ.

A gate that cannot be judged fails, and says why: a check that passes without a value checks nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from ampcheck.bench.result import BASE, Bench, Case, Row
from ampcheck.bench.verdicts import NOT_JUDGED, Judgement, judgement, speed


@dataclass(frozen=True, slots=True)
class Gates:
    """Limits; None is no limit."""

    min_speedup: float | None = None  #: the lower end of the interval has to reach it
    max_memory: float | None = None  #: of the peak on CUDA over FP32's
    max_loss: float | None = None  #: by which training may end above FP32, as a share of FP32's

    @property
    def any(self) -> bool:
        """Tell whether there is a limit."""
        return any(limit is not None for limit in (self.min_speedup, self.max_memory, self.max_loss))

    def broken(self, bench: Bench, case: Case) -> Iterator[str]:
        """Yield a sentence for each limit that a case breaks, or that cannot be judged."""
        for row in case.rows:
            if row.precision != BASE:
                if self.min_speedup is not None:
                    yield from self._speed(case, row, self.min_speedup)
                if self.max_memory is not None:
                    yield from self._memory(case, row, self.max_memory)
                if self.max_loss is not None and case.mode == "train":
                    yield from self._loss(bench, case, row, self.max_loss)
        if self.max_loss is not None and case.mode != "train":
            yield "the training cannot be judged: in inference nothing is trained"

    def _speed(self, case: Case, row: Row, limit: float) -> Iterator[str]:
        fast = speed(case, row)
        if fast is None or not _ran(case, row):
            yield _unjudged("the speed", row, case.row(BASE), "time", case)
        elif row.time is not None and row.time.skipped:
            yield f"the speed of {row.precision} cannot be judged: {row.time.skipped} timed updates were skipped"
        elif not fast.interval.low >= limit:
            yield (
                f"{row.precision} is {fast.interval.estimate:.2f} times as fast as FP32 "
                f"[{fast.interval.low:.2f}, {fast.interval.high:.2f}], expected at least {limit:g}"
            )

    def _memory(self, case: Case, row: Row, limit: float) -> Iterator[str]:
        memory = case.memory_ratio(row)
        if memory is None or not _ran(case, row):
            yield _unjudged("the memory", row, case.row(BASE), "memory", case)
        elif memory > limit:
            yield f"{row.precision} needs {memory:.2f} times the memory of FP32, expected at most {limit:g}"

    def _loss(self, bench: Bench, case: Case, row: Row, limit: float) -> Iterator[str]:
        found = judgement(bench, case, row)
        if found is None or not _ran(case, row):
            yield _unjudged("the training", row, case.row(BASE), "training", case)
            return
        size = abs(found.reference) or 1.0
        share, most = found.difference.estimate / size, found.difference.high / size
        if found.word in {"fails", "stuck"} or not isfinite(share):
            yield f"training in {row.precision} fails in {found.failed or found.seeds} of {found.seeds} runs"
        elif found.word == NOT_JUDGED:
            yield f"the training of {row.precision} cannot be judged: the labels are random"
        elif share > limit:
            yield (
                f"{row.precision} trains to a {found.measure} of {found.own:.4g}, FP32 to {found.reference:.4g}: "
                f"{share:.1%} worse, expected at most {limit:.1%}"
            )
        elif not most <= limit:
            yield f"the training of {row.precision} cannot be judged: {_undecided(found, most, limit)}"


def _undecided(found: Judgement, most: float, limit: float) -> str:
    """Return what too few runs leave open."""
    if not isfinite(most):
        return found.statement or "one run shows no difference; more --seeds do"
    return (
        f"after {found.seeds} runs its {found.measure} may be up to {most:.1%} worse, expected at most {limit:.1%}; "
        "more --seeds narrow it"
    )


def broken(gates: Gates, bench: Bench) -> tuple[str, ...]:
    """Return what breaks the gates, each with its case, and the gates that nothing could be held to."""
    if not gates.any:
        return ()
    if not any(row.precision != BASE for case in bench.cases for row in case.rows):
        return ("the gates cannot be judged: no precision was measured beside FP32",)
    return tuple(f"{case.key}: {text}" for case in bench.cases for text in gates.broken(bench, case))


def _ran(case: Case, row: Row) -> bool:
    """Tell whether both a row and FP32 run; what was measured before they failed is no result."""
    base = case.row(BASE)
    return row.status == "ok" and base is not None and base.status == "ok"


def _unjudged(what: str, row: Row, base: Row | None, part: str, case: Case) -> str:
    if row.status != "ok":
        why = f"it does not run ({row.message or row.status})"
    elif base is None or base.status != "ok":
        why = f"FP32 does not run ({base.message or base.status})" if base else "there is no FP32 row"
    elif part not in case.parts:
        why = f"the part {part!r} was not measured"
    elif part == "memory" and row.memory is not None and row.memory.note:
        why = row.memory.note
    else:
        why = row.message or "there is no value for it or for FP32"
    return f"{what} of {row.precision} cannot be judged: {why}"
