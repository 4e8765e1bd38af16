"""What low precision buys a model that was audited: its step predicted on a GPU, in FP32 and as advised."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ampcheck.bench.gpu_time import gpu_time, runs_on, speed_up
from ampcheck.bench.result import GpuTime
from ampcheck.bench.roofline import named_by
from ampcheck.bench.running.precisions import Precision, precision
from ampcheck.bench.running.predict import Prediction, batch_size_of, predict
from ampcheck.observe.model.structure import modules
from ampcheck.targets.spec import Target
from ampcheck.values.report import Bought, Report

#: The GPU whose times are predicted where none is here.
GPU = "h100"
_ROWS = {"fp16": "amp", "bf16": "bf16"}


def with_bought(report: Report, target: Target) -> Report:
    """Return a report with what its precision is predicted to buy; as it is, where nothing can be predicted."""
    row = _ROWS.get(report.precision)
    trains = report.mode == "train" and report.cast == "autocast" and report.recipes is None
    if row is None or not trains or not report.judgeable:
        return report
    chosen = precision(row)
    if report.plan is not None and report.plan.precision == report.precision:
        chosen = replace(chosen, plan=report.plan)
    try:
        base, low = (_predicted(target, one) for one in (precision("fp32"), chosen))
    except Exception:  # noqa: BLE001  # the user's code met tensors without numbers
        return report
    return replace(report, bought=_bought(base, low, row, batch_size_of(target.batch(0))))


def _bought(base: Prediction, low: Prediction, row: str, samples: int) -> Bought:
    here = named_by(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    card = here.name if here is not None else GPU
    found = Bought(samples, base.split.peak_bytes, low.split.peak_bytes)
    if base.recurrent or not runs_on(card, low.work):
        return found
    factor = speed_up(_time(card, base, "fp32"), _time(card, low, row), "train")
    return replace(found, gpu=card, faster=factor)


def _time(card: str, found: Prediction, row: str) -> GpuTime:
    return gpu_time(card, found.work, row, found.split.roles.get("parameters", 0), found.split.peak_bytes)


def _predicted(target: Target, chosen: Precision) -> Prediction:
    """Predict a step without storage; the model gets its tensors back. It raises where numbers are looked at."""
    with _put_back(target.model):
        return predict(lambda: target, chosen, batch_size=batch_size_of(target.batch(0)))


@contextmanager
def _put_back(model: Any) -> Iterator[None]:
    """Give the modules of a model their own tensors back."""
    tables = [
        (table, dict(table))
        for own in (module.__dict__ for module in modules(model))
        for table in (own.get("_parameters"), own.get("_buffers"), own)
        if table is not None
    ]
    try:
        yield
    finally:
        for table, held in tables:
            table.clear()
            table.update(held)
