"""Gates: what a precision has to keep to. All are ratios to FP32 of the same run, as machines differ.

A gate that cannot be judged fails, and says why: a check that passes without a value checks nothing.
"""

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

    @property
    def any(self) -> bool:
        """Tell whether there is a limit."""
        return any(limit is not None for limit in (self.min_speedup, self.max_memory, self.max_loss))

    def broken(self, bench: Bench, case: Case, row: Row) -> Iterator[str]:
        """Yield a sentence for each limit that a row breaks, or that cannot be judged."""
        if row.precision == BASE:
            return
        if self.min_speedup is not None:
            yield from self._speed(case, row, self.min_speedup)
        if self.max_memory is not None:
            yield from self._memory(case, row, self.max_memory)
        if self.max_loss is not None and case.mode == "train":
            yield from self._loss(bench, case, row, self.max_loss)

    def _speed(self, case: Case, row: Row, limit: float) -> Iterator[str]:
        fast = speed(case, row)
        if fast is None:
            yield _unjudged("the speed", row, case.row(BASE), "time", case)
        elif row.time is not None and row.time.skipped:
            yield f"the speed of {row.precision} cannot be judged: {row.time.skipped} timed updates were skipped"
        elif fast.interval.low < limit:
            yield (
                f"{row.precision} is {fast.interval.estimate:.2f} times as fast as FP32 "
                f"[{fast.interval.low:.2f}, {fast.interval.high:.2f}], expected at least {limit:g}"
            )

    def _memory(self, case: Case, row: Row, limit: float) -> Iterator[str]:
        memory = case.memory_ratio(row)
        if memory is None or row.status != "ok":
            yield _unjudged("the memory", row, case.row(BASE), "memory", case)
        elif memory > limit:
            yield f"{row.precision} needs {memory:.2f} times the memory of FP32, expected at most {limit:g}"

    def _loss(self, bench: Bench, case: Case, row: Row, limit: float) -> Iterator[str]:
        found = judgement(bench, case, row)
        if found is None or row.status != "ok":
            yield _unjudged("the training", row, case.row(BASE), "training", case)
            return
        difference = found.difference.estimate
        share = difference / abs(found.reference) if found.reference else difference
        if found.word in {"fails", "stuck"} or not isfinite(share):
            yield f"training in {row.precision} fails in {found.failed or found.seeds} of {found.seeds} runs"
        elif bench.random_labels:
            yield f"the training of {row.precision} cannot be judged: the labels are random"
        elif share > limit:
            yield (
                f"{row.precision} trains to a {found.measure} of {found.own:.4g}, FP32 to {found.reference:.4g}: "
                f"{share:.1%} worse, expected at most {limit:.1%}"
            )


def broken(gates: Gates, bench: Bench) -> tuple[str, ...]:
    """Return what breaks the gates, each with its case, and the gates that nothing could be held to."""
    if not gates.any:
        return ()
    low = [(case, row) for case in bench.cases for row in case.rows if row.precision != BASE]
    if not low:
        return ("the gates cannot be judged: no precision was measured beside FP32",)
    found = [f"{case.key}: {text}" for case, row in low for text in gates.broken(bench, case, row)]
    if gates.max_loss is not None and all(case.mode == "infer" for case, _ in low):
        found.append("the training cannot be judged: only inference was measured")
    return tuple(found)


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
