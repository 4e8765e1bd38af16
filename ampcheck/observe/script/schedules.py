"""Schedulers of learning rates that a script steps, and the numbers that they go by."""

import math
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import lr_scheduler

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.patches import Original
from ampcheck.values.loop import NOT_FINITE, Kind

#: Numbers that a scheduler was given before it is known that half precision holds all of them.
_MANY = 8
#: What is not audited where a scheduler has lowered the rate by such numbers.
ROUNDED_METRIC = (
    "the learning rate falls by losses in half precision: whether it would by FP32's was not judged"
)


class _Given:
    """What a scheduler was given."""

    def __init__(self) -> None:
        self.numbers = 0
        self.in_half = True  #: half precision holds all of them


_given: WeakKeyDictionary[Any, _Given] = WeakKeyDictionary()


def schedule(watcher: Any, original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Take note of a scheduler's step."""
    if getattr(self, "_is_initial", False):  # its constructor takes a step of its own
        return original(self, *args, **kwargs)
    reads = isinstance(self, lr_scheduler.ReduceLROnPlateau)
    number = _number(*args, **kwargs) if reads else 0.0
    watcher.note(
        Kind.SCHEDULE, self, "scheduler", within=True, name="" if math.isfinite(number) else NOT_FINITE
    )
    before = _rates(self) if reads else []
    try:
        return original(self, *args, **kwargs)
    finally:
        watcher.leaves()
        if (
            reads
            and _all_in_half(self, number)
            and any(now < was for now, was in zip(_rates(self), before, strict=False))
        ):
            watcher.not_seen[ROUNDED_METRIC] = 1


def _rates(scheduler: Any) -> list[float]:
    return [float(group.get("lr", 0.0)) for group in getattr(scheduler.optimizer, "param_groups", ())]


def _all_in_half(scheduler: Any, number: float) -> bool:
    """Tell whether half precision holds all of the many numbers that a scheduler was given, this one included."""
    given = _given.setdefault(scheduler, _Given())
    given.numbers += 1
    given.in_half &= any(float(torch.tensor(number, dtype=dtype)) == number for dtype in HALVES)
    return given.in_half and given.numbers >= _MANY


def _number(metrics: Any = 0.0, *_: Any, **__: Any) -> float:
    """Return what a scheduler goes by; it reads the number itself, whatever that costs."""
    try:
        return float(metrics)
    except Exception:  # noqa: BLE001  # the scheduler will say it
        return 0.0
