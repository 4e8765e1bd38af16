"""What the fixture `precision_benchmark` gives a test: a call that measures, and what it found."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcheck.bench.request import Request
from ampcheck.bench.result import BASE, Bench, Case, Row
from ampcheck.bench.running.bench import Bencher, Make
from ampcheck.bench.table import records
from ampcheck.bench.verdicts import verdict
from ampcheck.plan import Plan
from ampcheck.targets import Options, load
from ampcheck.targets.spec import Target

_MODEL_BATCH_LOSS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """One precision beside FP32."""

    bench: Bench

    @property
    def case(self) -> Case:
        """Return the only case."""
        return self.bench.cases[0]

    @property
    def row(self) -> Row:
        """Return the row that was asked for."""
        return self.case.rows[-1]

    @property
    def speedup(self) -> float | None:
        """Return how many times as fast as FP32 it is; None where that was not timed."""
        interval = self.case.speedup(self.row)
        return None if interval is None else interval.estimate

    @property
    def memory(self) -> float | None:
        """Return the peak on CUDA over that of FP32."""
        return self.case.memory_ratio(self.row)

    @property
    def verdict(self) -> str:
        """Return what the table would say."""
        return verdict(self.bench, self.case, self.row)

    @property
    def record(self) -> dict[str, Any]:
        """Return the row as flat numbers."""
        return records(self.bench)[-1]


class PrecisionBenchmark:
    """Measures a target in a precision and in FP32, interleaved in one process."""

    def __init__(self, found: Callable[[Measured], None], *, timed: bool = True) -> None:
        """Tell `found` of what is measured; without `timed` only memory and accuracy are looked at."""
        self._found, self._timed = found, timed

    def __call__(
        self,
        target: str | Path | Callable[[], Any],
        precision: str = "amp",
        *,
        settings: Request | None = None,
        plan: Plan | None = None,
    ) -> Measured:
        """Measure a TARGET as on the command line, or a function that makes (model, batch, loss[, optimizer]).

        `settings` says how long to train and to time; its precisions are replaced by the one asked for.
        """
        from dataclasses import replace

        request = settings or Request(parts=("time", "memory", "accuracy"), budget=5.0)
        parts = request.parts if self._timed else tuple(part for part in request.parts if part != "time")
        request = replace(request, precisions=(BASE, precision), parts=parts, plan=plan or request.plan)
        name = str(target) if isinstance(target, str | Path) else getattr(target, "__name__", "target")
        empty = Bench(name, margin=request.margin)
        measured = Measured(Bencher(_maker(target), request).run(empty))
        if measured.bench.interrupted:
            raise KeyboardInterrupt
        self._found(measured)
        return measured


def _maker(target: str | Path | Callable[[], Any]) -> Make:
    if isinstance(target, str | Path):
        return lambda size, seed: load(str(target), Options(batch_size=size, seed=seed))
    make = target

    def made(size: int | None, seed: int) -> Target:
        from ampcheck.targets.seeding import seeded

        del size
        with seeded(seed):
            return _target(make())

    return made


def _target(value: Any) -> Target:
    if isinstance(value, Target):
        return value
    if isinstance(value, Mapping):
        return Target("target", value["model"], [value["batch"]], value["loss"], value.get("optimizer"))
    if not isinstance(value, tuple) or len(value) < _MODEL_BATCH_LOSS:
        raise TypeError(
            f"expected a function that returns (model, batch, loss) or (model, batch, loss, optimizer), "
            f"got one that returns {type(value).__name__}"
        )
    model, batch, loss, *rest = value
    return Target("target", model, [batch], loss, rest[0] if rest else None)
