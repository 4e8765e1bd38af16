"""Where the numbers of a watched loop go: the run of W&B or MLflow that a script has open, or a file for Prometheus."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ampcheck.run.tensorboard import Scalar
from ampcheck.saved.report_json import write


class Sink(Protocol):
    """Takes numbers."""

    def add(self, scalars: Sequence[Scalar], /) -> None:
        """Take the numbers that have become known."""


class Wandb:
    """Adds numbers to the run of Weights & Biases that the script has open; the script's own steps stay its own."""

    def add(self, scalars: Sequence[Scalar]) -> None:
        """Log the numbers with what the script logs next."""
        run = getattr(sys.modules.get("wandb"), "run", None)
        values = {scalar.tag: scalar.value for scalar in scalars}
        if run is not None and values:
            run.log({**values, "ampcheck/step": max(scalar.step for scalar in scalars)}, commit=False)


class Mlflow:
    """Adds numbers to the run of MLflow that the script has open."""

    def add(self, scalars: Sequence[Scalar]) -> None:
        """Log each number at its step."""
        mlflow: Any = sys.modules.get("mlflow")
        if mlflow is None or mlflow.active_run() is None:
            return
        for scalar in scalars:
            mlflow.log_metric(re.sub(r"[^\w./ -]", "_", scalar.tag), scalar.value, step=scalar.step)


class Prometheus:
    """Keeps the last value of each number in a file, in the text format that the node exporter collects."""

    def __init__(self, path: Path) -> None:
        self._path, self._last = path, dict[str, float]()

    def add(self, scalars: Sequence[Scalar]) -> None:
        """Write the file anew, at once: whoever reads it meanwhile sees the old one or the new one."""
        before = dict(self._last)
        for scalar in scalars:
            self._last[_metric(scalar.tag)] = scalar.value
            self._last["ampcheck_step"] = max(scalar.step, self._last.get("ampcheck_step", 0))
        if self._last != before:
            write(self._path, "".join(_lines(self._last)))


def _metric(tag: str) -> str:
    """Return a tag as a metric: `ampcheck/loss scale/scaler 1` is ampcheck_loss_scale{scaler="scaler 1"}."""
    first, _, rest = tag.partition("loss scale/")
    if rest:
        label = rest.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'ampcheck_loss_scale{{scaler="{label}"}}'
    return re.sub(r"\W+", "_", first).lower()


def _lines(values: dict[str, float]) -> Iterable[str]:
    typed: set[str] = set()
    for metric, value in sorted(values.items()):
        name = metric.partition("{")[0]
        if name not in typed:
            typed.add(name)
            yield f"# TYPE {name} gauge\n"
        text = {math.inf: "+Inf", -math.inf: "-Inf"}.get(
            value, "NaN" if math.isnan(value) else f"{value:.17g}"
        )
        yield f"{metric} {text}\n"


#: What `ampcheck run --log` takes.
LOGGERS: dict[str, Callable[[], Sink]] = {"wandb": Wandb, "mlflow": Mlflow}


def parsed(text: str) -> list[Sink]:
    """Return what wandb,mlflow,prometheus:FILE stands for."""
    found: list[Sink] = []
    for word in text.split(","):
        name, _, path = word.partition(":")
        if name in LOGGERS and not path:
            found.append(LOGGERS[name]())
        elif name == "prometheus" and path:
            found.append(Prometheus(Path(path).absolute()))
        else:
            raise ValueError(f"expected wandb, mlflow or prometheus:FILE, got {word!r}")
    return found
