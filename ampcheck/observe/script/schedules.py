"""Schedulers of learning rates that a script steps, and the numbers that they go by."""

import math
import struct
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import lr_scheduler

from ampcheck.observe.patches import Original
from ampcheck.observe.script.guard import surely
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
    before = _rate(self)
    try:
        return original(self, *args, **kwargs)
    finally:
        watcher.leaves()
        if reads:
            surely(watcher, _goes_by, watcher, self, number, fell=_rate(self) < before)


def _rate(scheduler: Any) -> float:
    """Return the learning rates together as torch knows them; those on a device are not asked for."""
    return sum(rate for rate in vars(scheduler).get("_last_lr") or () if isinstance(rate, float))


def _goes_by(watcher: Any, scheduler: Any, number: float, *, fell: bool) -> None:
    """Take note of a number that a scheduler goes by, and of a rate that falls by it."""
    given = _given.setdefault(scheduler, _Given())
    given.numbers += 1
    given.in_half &= _is_half(number)
    if given.in_half and given.numbers >= _MANY and fell:
        watcher.not_seen[ROUNDED_METRIC] = 1


def _is_half(number: float) -> bool:
    """Tell whether bfloat16 or float16 holds a number: no operation of torch's is run for that."""
    try:
        wide = struct.pack("<f", number)
        whole = struct.unpack("<f", wide)[0] == number and wide[:2] == b"\0\0"
        return whole or struct.unpack("<e", struct.pack("<e", number))[0] == number
    except OverflowError:
        return False


def _number(metrics: Any = 0.0, *_: Any, **__: Any) -> float:
    """Return what a scheduler goes by; it reads the number itself, whatever that costs."""
    try:
        return float(metrics)
    except Exception:  # noqa: BLE001  # the scheduler will say it
        return 0.0
