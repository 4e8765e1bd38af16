"""Gradients that threads make half precision of, as workers do that send them to a server, or stages to each other.

What becomes of them is in no recorded step: what a cast or a division does to each is looked at where it happens.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe import modes
from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import Args
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable
from ampcheck.observe.unusual import plain
from ampcheck.values.loop import MADE_INFINITE, MADE_ZERO
from ampcheck.values.outcome import HARM_ERROR

_CAST = torch.ops.aten._to_copy.default
#: What is done to a gradient before it is sent: it is cast, or divided by the loss scale.
_SENDS = frozenset({_CAST, torch.ops.aten.div.Tensor, torch.ops.aten.mul.Tensor})
#: How many of one line and shape are looked at; and of them, those that ruin the gradient before that is said.
_LOOKS, _FEW = 16, 4
#: Casts within backwards that are looked at, of one shape.
_MOST_LOOKS = 256
#: Gradients that are kept in mind before those that are gone are forgotten.
_HELD = 4096


class SentGradients:
    """What a thread's backwards have computed, and what is left of it in half precision."""

    def __init__(self) -> None:
        """Begin with none."""
        self._gradients: dict[int, StorageWeakRef] = {}
        self._casts: Counter[tuple[str, int, Any, torch.Size]] = Counter()
        self.ruined: Counter[tuple[str, int, Any, torch.Size]] = Counter()
        self._said: set[tuple[str, int]] = set()
        #: By line that runs a backward: how many of its casts have made a gradient zero, and whether one has not.
        self._gone: Counter[tuple[str, int]] = Counter()
        self._kept: set[tuple[str, int]] = set()
        self._looked: Counter[torch.Size] = Counter()

    def computed(self, tensors: Iterable[Any]) -> None:
        """Take note of what a backward has computed."""
        if len(self._gradients) > _HELD:
            alive = {key: one for key, one in list(self._gradients.items()) if not one.expired()}
            self._gradients = alive if 2 * len(alive) < _HELD else {}
        for tensor in map(plain, tensors):
            if tensor is not None and readable(tensor):
                storage = tensor.untyped_storage()
                self._gradients[storage._cdata] = StorageWeakRef(storage)

    def sends(self, func: Any, args: Args, low: torch.Tensor, tell: Callable[[str], object]) -> None:
        """Look at an operation; `tell` hears what many of those at a line make of gradients, and where."""
        if func not in _SENDS or not self._gradients or not readable(tensor := args[0]):
            return
        known = self._gradients.get(tensor.untyped_storage()._cdata)
        if known is None or known.expired():
            return
        self.computed((low,))
        if low.dtype not in HALVES or (func is _CAST) == (low.dtype is tensor.dtype):
            return
        place = running_line()
        key = (*place, func, tensor.shape)
        if self._casts[key] >= _LOOKS or place in self._said:
            return
        self._casts[key] += 1
        if found := _made_of(func, args, low):
            self.ruined[key] += 1
            if self.ruined[key] >= _FEW and 2 * self.ruined[key] >= self._casts[key]:
                self._said.add(place)
                tell(f"{found} {place[0]}:{place[1]}")

    def casts_within(self, tensor: torch.Tensor, low: torch.Tensor, tell: Callable[[str], object]) -> None:
        """Look at a cast of a gradient within a backward; `tell` hears of a line where all of those become zero.

        So it is without a loss scale where that is needed: what is computed and sent then is zero as well.
        """
        if tensor.dtype is not torch.float32 or low.dtype not in HALVES:
            return
        place = running_line()
        if place in self._kept or self._gone[place] >= _LOOKS or self._looked[low.shape] >= _MOST_LOOKS:
            return
        self._looked[low.shape] += 1
        if not 0.0 < _size(tensor) < inf:
            return
        if _size(low):
            self._kept.add(place)
            return
        self._gone[place] += 1
        if self._gone[place] == _LOOKS:
            self.ruined[(*place, _CAST, torch.Size())] += _LOOKS
            self._said.add(place)
            tell(f"{MADE_ZERO} {place[0]}:{place[1]}")


@modes.unseen
def _size(tensor: torch.Tensor) -> float:
    return float(tensor.detach().float().norm())


@modes.unseen
def _made_of(func: Any, args: Args, low: torch.Tensor) -> str:
    """Return what an operation has made of a finite gradient, '' where that is what it is in FP32."""
    grad, left = args[0].detach().float(), low.detach().float()
    if func is not _CAST:
        grad = func(grad, *args[1:])
    size = float(grad.norm())
    if not 0.0 < size < float("inf"):
        return ""
    if not bool(left.isfinite().all()):
        return MADE_INFINITE
    return MADE_ZERO if float((grad - left).norm()) > HARM_ERROR * size else ""
