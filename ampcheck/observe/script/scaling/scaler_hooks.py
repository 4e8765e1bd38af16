"""What hears of the methods of torch's GradScaler and of the classes made of it, and of DeepSpeed's loss scalers.

These scale, divide and skip by themselves. Their scale and the steps that they skip are seen here. What they divide is
not: ZeRO moves gradients elsewhere.
"""

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from typing import Any

from ampcheck.observe.patches import Original, Patches
from ampcheck.observe.script.guard import guarded
from ampcheck.observe.script.watcher import Watcher
from ampcheck.values.plan import DEFAULT_SCALE

#: The module that has DeepSpeed's.
MODULE = "deepspeed.runtime.fp16.loss_scaler"
#: What is asked of a scaler, and torch's defaults.
_SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "init_scale": DEFAULT_SCALE,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "enabled": True,
}


def made(
    watcher: Watcher, known: Callable[[type], None], original: Original, self: Any, *args: Any, **kwargs: Any
) -> None:
    """Hear of a scaler that is made: what was asked for, and which class it was asked of."""
    known(type(self))
    original(self, *args, **kwargs)
    watcher.made(self, _SETTINGS | dict(zip(_SETTINGS, args, strict=False)) | kwargs)


def once(
    watcher: Watcher,
    name: str,
    instead: Callable[..., Any],
    original: Original,
    self: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call what hears of a scaler's method; where a class's own calls that of its base, only the former counts."""
    key = (get_ident(), id(self), name)
    if key in watcher.within:
        if name == "update" and any(one is not None for one in (*args, *kwargs.values())):
            _given(watcher, self)
        return original(self, *args, **kwargs)
    watcher.within.add(key)
    try:
        return instead(watcher, original, self, *args, **kwargs)
    finally:
        watcher.within.discard(key)


@guarded
def _given(watcher: Watcher, scaler: Any) -> None:
    """Take note of the line where a scaler's own update gives it a scale."""
    file, line = watcher.journal.place()
    if file:
        watcher.journal.describe(watcher.journal.label(scaler, "scaler"), gives_at=f"{file}:{line}")


def _scale(watcher: Watcher, original: Original, self: Any, outputs: Any) -> Any:
    now = watcher.tape.now
    lanes = None if now is None else now.recorder.lanes
    with (
        nullcontext() if lanes is None else lanes.turn()
    ):  # FP32's scale is another while the loss is multiplied
        watcher.scale(self, outputs)
        out = original(self, outputs)
        watcher.scaled(self, out)
    return out


def _unscale(watcher: Watcher, original: Original, self: Any, optimizer: Any) -> Any:
    watcher.unscale(self, optimizer)
    try:
        return original(self, optimizer)
    finally:
        watcher.unscale_ends(self)


def _scaler_step(
    watcher: Watcher, original: Original, self: Any, optimizer: Any, *args: Any, **kwargs: Any
) -> Any:
    watcher.scaler_step_begins(self, optimizer)
    try:
        return original(self, optimizer, *args, **kwargs)
    finally:
        watcher.scaler_step_ends(self, optimizer)


def _update(watcher: Watcher, original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    watcher.update_begins(self, given=bool(args or kwargs))
    out = original(self, *args, **kwargs)
    watcher.update_ends(self)
    return out


def _get_scale(watcher: Watcher, original: Original, self: Any) -> Any:
    watcher.scale_read()
    return original(self)


#: What hears of the methods of a class of scalers.
OF_SCALERS: dict[str, Callable[..., Any]] = {
    "get_scale": _get_scale,
    "scale": _scale,
    "unscale_": _unscale,
    "step": _scaler_step,
    "update": _update,
}


def subclasses(kind: type) -> list[type]:
    """Return the classes made of one, at any depth."""
    own: list[type] = kind.__subclasses__()
    return [found for one in own for found in (one, *subclasses(one))]


def hear_scales(patches: Patches, watcher: Watcher) -> None:
    """Listen to the updates of DeepSpeed's scale, once its module is there."""
    for name in ("LossScalerBase", "DynamicLossScaler"):
        kind = getattr(sys.modules[MODULE], name, None)
        if "update_scale" in vars(kind or object):
            patches.put(kind, "update_scale", functools.partial(_update_scale, watcher))


def _update_scale(watcher: Watcher, original: Original, self: Any, overflow: Any) -> Any:
    before = self.cur_scale
    out = original(self, overflow)
    if before != 1.0 or getattr(self, "dynamic", False):  # it is there in bf16 too, and does nothing
        watcher.rescaled(self, before, self.cur_scale, overflow)
    return out
