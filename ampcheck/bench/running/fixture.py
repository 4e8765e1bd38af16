"""What the fixture `precision_benchmark` gives a test: a call that measures, and what it found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcheck.bench.request import Request
from ampcheck.bench.result import BASE, Bench, Case, Row
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.running.one_case import Make
from ampcheck.bench.table import records
from ampcheck.bench.verdicts import verdict
from ampcheck.bench.views import frame
from ampcheck.targets import Options, load
from ampcheck.targets.spec import Target
from ampcheck.values.plan import Plan

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
        return self.records[-1]

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return every row as flat numbers, FP32 first."""
        return records(self.bench)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Return the rows that were asked for, as flat numbers."""
        return [record for record in self.records if record["precision"] != BASE] or self.records

    def frame(self) -> Any:
        """Return every row as a pandas DataFrame."""
        return frame(self.bench)


class PrecisionBenchmark:
    """Measures a target in a precision and in FP32, interleaved in one process."""

    def __init__(
        self, found: Callable[[Measured], None], *, timed: bool = True, trains: bool = False
    ) -> None:
        """Tell `found` of what is measured; without `timed` only memory and accuracy are looked at.

        With `trains` training is measured too unless the test says what to measure: a gate asks for it.
        """
        self._found, self._timed, self._trains = found, timed, trains

    def __call__(
        self,
        target: str | Path | Callable[[], Any],
        precision: str | Sequence[str] = "amp",
        *,
        settings: Request | None = None,
        plan: Plan | None = None,
    ) -> Measured:
        """Measure a TARGET as on the command line, or a function that makes (model, batch, loss[, optimizer]).

        Several precisions are measured in one go, interleaved; the last one is the result's `row`. `settings` says
        how long to train and to time; its precisions are replaced by the ones asked for.
        """
        from dataclasses import replace

        asked = (precision,) if isinstance(precision, str) else tuple(precision)
        usual = ("time", "memory", "accuracy", *(("training",) if self._trains else ()))
        request = settings or Request(parts=usual, budget=5.0)
        parts = request.parts if self._timed else tuple(part for part in request.parts if part != "time")
        request = replace(request, precisions=(BASE, *asked), parts=parts, plan=plan or request.plan)
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
