"""Parameters that several optimizers share: a scaler divides their gradients once for each of them."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE
from ampcheck.observe.script.scaling.scaled_by_hand import CLOSE, all_sizes
from ampcheck.observe.statistics.memory import version_of


@dataclass(frozen=True, slots=True)
class _Divided:
    """A gradient that a scaler has divided."""

    label: str  #: of the optimizer that it was divided for
    grad: Any  #: weak
    version: int
    largest: float  #: element
    backwards: int  #: that there had been


class SharedGradients:
    """Measures the gradients of shared parameters before and after a scaler divides them."""

    def __init__(self) -> None:
        self._owners: dict[int, set[str]] = {}
        self._shared: set[int] = set()
        self._counts: dict[str, int] = {}  #: of parameters, by optimizer, as they were last given
        self._divided: dict[int, _Divided] = {}
        self._before: list[tuple[torch.Tensor, float, bool]] = []
        self._now = ("", 1.0, 0)  #: label, scale and backwards of the division that runs

    def owns(self, label: str, parameters: Iterable[Any]) -> None:
        """Take note of what an optimizer has."""
        held = list(parameters)
        if self._counts.get(label) == len(held):
            return
        self._counts[label] = len(held)
        for one in (one for one in held if isinstance(one, torch.Tensor)):
            owners = self._owners.setdefault(id(one), set())
            owners.add(label)
            if len(owners) > 1:
                self._shared.add(id(one))

    def begins(self, label: str, scaler: Any, optimizer: Any, backwards: int) -> None:
        """Measure gradients of shared parameters that a scaler is about to divide for an optimizer."""
        scale = getattr(scaler, "_scale", None)
        self._before = []
        if not self._shared or not isinstance(scale, torch.Tensor) or not scaler.is_enabled():
            return
        with unseen():
            held = {
                id(one): (one, bool(group.get("lr", 1.0)))
                for group in getattr(optimizer, "param_groups", ())
                for one in group["params"]
                if id(one) in self._shared
            }
            self._now = label, float(scale), backwards
            self._before = [
                (one, size, held[id(one)][1] and self._was_divided(one, size))
                for one, size in all_sizes(one for one, _ in held.values())
            ]

    def _was_divided(self, parameter: torch.Tensor, size: float) -> bool:
        """Tell whether a gradient is what a division for another optimizer has left, or that and clipped."""
        known, grad = self._divided.get(id(parameter)), parameter.grad
        label, scale, backwards = self._now
        if known is None or grad is None or known.grad() is not grad or known.label == label:
            return False
        same = version_of(grad) == known.version
        shorter = backwards == known.backwards and size <= known.largest * (1.0 + CLOSE)
        return scale >= SMALLEST_SCALE and 0.0 < size < float("inf") and (same or shorter)

    def ends(self) -> list[torch.Tensor]:
        """Return the parameters whose gradients were divided a second time."""
        before, self._before = self._before, []
        label, scale, backwards = self._now
        again = []
        with unseen():
            after = {id(one): largest for one, largest in all_sizes(one for one, _, _ in before)}
            for one, was, divided in before:
                now, grad = after.get(id(one), 0.0), one.grad
                if grad is None or not now or not isfinite(was) or abs(was / now - scale) > CLOSE * scale:
                    self._divided.pop(id(one), None)
                    continue
                again += [one] if divided else []
                self._divided[id(one)] = _Divided(label, weakref.ref(grad), version_of(grad), now, backwards)
        return again
