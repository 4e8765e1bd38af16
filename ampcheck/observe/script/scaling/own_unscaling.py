"""Scalers that divide gradients in a way of their own: whether they divide all of them, and keep what overflowed."""

import dis
import inspect
from collections.abc import Iterable
from math import isfinite
from types import CodeType
from typing import Any

import torch

from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE
from ampcheck.observe.script.scaling.scales import found_overflow
from ampcheck.observe.source import shown_path
from ampcheck.observe.unusual import plain

#: Looks at one scaler, one after the other: what it leaves out, it leaves out each time. Later ones are ever rarer.
MOST_LOOKS = 3
#: How far a measured division may be off, relatively, and still be the one by the scale.
_CLOSE = 1e-3
#: What takes the place of numbers that are not finite.
_TO_FINITE = frozenset(
    "nan_to_num nan_to_num_ where masked_fill masked_fill_ clamp clamp_ clip clip_".split()
)
#: What writes into a scale.
_WRITES = frozenset("clamp_ clamp_min_ clamp_max_ clip_ fill_ copy_ mul_ div_".split())


class OwnUnscaling:
    """Measures gradients before and after a scaler's own code divides them."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._before: list[tuple[torch.Tensor, float]] = []
        self._scale = 1.0
        self._place = ""

    def begins(self, label: str, scaler: Any, parameters: Iterable[Any]) -> None:
        """Measure what is about to be divided, where it is not torch that divides."""
        self._before = []
        code = own_code(type(scaler))
        if code is None:
            return
        calls = self._calls[label] = self._calls.get(label, 0) + 1
        if calls > MOST_LOOKS and calls & (calls - 1):
            return
        self._place = f"{shown_path(code.co_filename)}:{code.co_firstlineno}"
        scale = getattr(scaler, "_scale", None)
        if not isinstance(scale, torch.Tensor):
            return
        with unseen():
            self._scale = float(scale)
            self._before = [(one, size) for one in parameters if (size := _largest(one))]

    def ends(self, scaler: Any) -> dict[str, Any] | None:
        """Return what is to be said of the scaler where gradients are still multiplied, or no longer infinite."""
        before, self._before = self._before, []
        with unseen():
            infinite = [one for one, was in before if not isfinite(was)]
            hidden = infinite and all(isfinite(_largest(one)) for one in infinite)
            if hidden and not found_overflow(scaler):
                return {
                    "made_finite": len(infinite),
                    "unscales_at": _hides_at(own_code(type(scaler))) or self._place,
                }
            finite = ((one, was) for one, was in before if isfinite(was))
            ratios = [was / now for one, was in finite if isfinite(now := _largest(one)) and now]
        left = sum(abs(ratio - 1) < _CLOSE for ratio in ratios)
        divided = any(abs(ratio - self._scale) < _CLOSE * self._scale for ratio in ratios)
        if not (left and divided and self._scale >= SMALLEST_SCALE):
            return None
        return {"left_scaled": left, "unscaled": len(ratios), "unscales_at": self._place}


def _hides_at(code: CodeType | None) -> str:
    """Return "file:line" where a method makes numbers finite, '' where no line of its own does."""
    for one in dis.get_instructions(code) if code is not None else ():
        if one.argval in _TO_FINITE and code is not None and one.positions and one.positions.lineno:
            return f"{shown_path(code.co_filename)}:{one.positions.lineno}"
        if isinstance(one.argval, CodeType) and (found := _hides_at(one.argval)):
            return found
    return ""


def updates_at(kind: type) -> str:
    """Return "file:line" at which a class's own update writes the scale, or begins; '' where it is torch's."""
    code = own_code(kind, ("update",))
    if code is None:
        return ""
    named = [(one.positions.lineno, one.argval) for one in dis.get_instructions(code) if one.positions]
    of_scale = {line for line, name in named if name == "_scale"}
    line = next((at for at, name in named if name in _WRITES and at in of_scale), None) or code.co_firstlineno
    return f"{shown_path(code.co_filename)}:{line}"


def own_code(kind: type, names: Iterable[str] = ("_unscale_grads_", "unscale_")) -> Any:
    """Return the code by which a class of scalers divides gradients, None where torch's own does."""
    for name in names:
        method = inspect.unwrap(getattr(kind, name, own_code))
        if not method.__module__.startswith(("torch.", "ampcheck.")):
            return method.__code__
    return None


def _largest(parameter: Any) -> float:
    """Return the largest magnitude in a gradient, 0 where there is none, infinite or NaN where it is not finite."""
    grad = plain(getattr(parameter, "grad", None))
    if grad is None or grad.layout is not torch.strided or not grad.numel():
        return 0.0
    return float(grad.detach().abs().amax())
