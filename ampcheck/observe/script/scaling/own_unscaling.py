"""Scalers that divide gradients in a way of their own: whether they divide all of them."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE
from ampcheck.observe.source import shown_path
from ampcheck.observe.unusual import plain

#: Looks at one scaler: what it leaves out, it leaves out each time.
MOST_LOOKS = 3
#: How far a measured division may be off, relatively, and still be the one by the scale.
_CLOSE = 1e-3


class OwnUnscaling:
    """Measures gradients before and after a scaler's own code divides them."""

    def __init__(self) -> None:
        self._looks: dict[str, int] = {}
        self._before: list[tuple[torch.Tensor, float]] = []
        self._scale = 1.0
        self._place = ""

    def begins(self, label: str, scaler: Any, parameters: Iterable[Any]) -> None:
        """Measure what is about to be divided, where it is not torch that divides."""
        self._before = []
        code = own_code(type(scaler))
        if code is None or self._looks.get(label, 0) >= MOST_LOOKS:
            return
        self._place = f"{shown_path(code.co_filename)}:{code.co_firstlineno}"
        scale = getattr(scaler, "_scale", None)
        if not isinstance(scale, torch.Tensor):
            return
        self._looks[label] = self._looks.get(label, 0) + 1
        with unseen():
            self._scale = float(scale)
            self._before = [(one, size) for one in parameters if (size := _largest(one))]

    def ends(self) -> dict[str, Any] | None:
        """Return what is to be said of the scaler where gradients are still multiplied by its scale."""
        before, self._before = self._before, []
        with unseen():
            ratios = [was / now for one, was in before if (now := _largest(one))]
        left = sum(abs(ratio - 1) < _CLOSE for ratio in ratios)
        divided = any(abs(ratio / self._scale - 1) < _CLOSE for ratio in ratios)
        if not (left and divided and self._scale >= SMALLEST_SCALE):
            return None
        return {"left_scaled": left, "unscaled": len(ratios), "unscales_at": self._place}


def updates_at(kind: type) -> str:
    """Return "file:line" of a class of scalers' own update, '' where it has torch's."""
    code = own_code(kind, ("update",))
    return f"{shown_path(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""


def own_code(kind: type, names: Iterable[str] = ("_unscale_grads_", "unscale_")) -> Any:
    """Return the code by which a class of scalers divides gradients, None where torch's own does."""
    for name in names:
        method = inspect.unwrap(getattr(kind, name, own_code))
        if not method.__module__.startswith(("torch.", "ampcheck.")):
            return method.__code__
    return None


def _largest(parameter: Any) -> float:
    """Return the largest magnitude in a gradient, 0 where there is none or it is not finite."""
    grad = plain(getattr(parameter, "grad", None))
    if grad is None or grad.layout is not torch.strided or not grad.numel():
        return 0.0
    found = float(grad.detach().abs().amax())
    return found if found < float("inf") else 0.0
