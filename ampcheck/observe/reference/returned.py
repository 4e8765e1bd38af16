"""Gradients that a script asks autograd for and goes on to compute with: how far they are from FP32's."""

from collections.abc import Callable, Iterable
from itertools import zip_longest
from math import isfinite
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe import modes
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable, tensors_of
from ampcheck.values.loop import Kind
from ampcheck.values.wording import location, percent

#: What is not audited, before the line and the error.
USE = "the use of gradients that autograd.grad returns"
#: Error of what is returned, as a part of FP32's, from which on it is said that its effect was not judged.
_FAR = 0.5
#: Operations that multiply gradients or hand them on, and those that move something by them.
_HANDS_ON = frozenset(
    """mul mul_ div div_ neg _to_copy clone detach _foreach_mul _foreach_mul_ _foreach_div _foreach_neg""".split()
)
_MOVES = frozenset("add sub add_ sub_ _foreach_add _foreach_sub _foreach_add_ _foreach_sub_".split())
#: Part of what is moved, from which on it matters.
_MATTERS = 1e-3
#: Returns what FP32 has in a tensor's place, None where that is the same.
Of = Callable[[torch.Tensor], torch.Tensor | None]


def _raise(error: Exception) -> None:
    raise error


class Returned:
    """Compares what `torch.autograd.grad` returns within a step with FP32's."""

    def __init__(
        self,
        of: Of,
        gave_way: Callable[[Exception], None] = _raise,
        lost: Callable[[Kind, str], None] = lambda *_: None,
    ) -> None:
        """Begin; `lost` hears of places whose gradients are zero for the most part, and whether they move something."""
        self._of, self._gave_way, self._lost = of, gave_way, lost
        #: By place: energies of the error, of FP32's gradients, and of the part of them that is zero.
        self._found: dict[str, torch.Tensor] = {}
        self._zero: dict[str, torch.Tensor | bool] = {}  #: whether those of a call are zero for the most part
        #: By storage that holds gradients, their place.
        self._from: dict[int, tuple[StorageWeakRef, str]] = {}
        #: By place: energies of what FP32 moves, of the part of it that is zero, and of all that is moved.
        self._moved: dict[str, torch.Tensor] = {}

    def note(self, grads: Iterable[object]) -> None:
        """Take note of the gradients that one call returns."""
        together: dict[str, torch.Tensor] = {}
        for grad in grads:
            wide = self._of(grad) if isinstance(grad, torch.Tensor) and readable(grad) else None
            if wide is None or not isinstance(grad, torch.Tensor):
                continue
            low, high = grad.detach().double(), wide.double()
            known = high.isfinite()
            high = high.where(known, 0.0)
            parts = [(low - high).where(known, 0.0), high, high.where(low == 0, 0.0)]
            sums = torch.stack([part.square().sum() for part in parts])
            place = location(*running_line())
            _add(self._found, place, sums)
            _add(together, place, sums)
            self._holds(grad, place)
        for place, (_, size, gone) in together.items():
            # Beside other calls of this line, as for another loss, these may be small.
            self._zero[place] = self._zero.get(place, False) | (gone > _FAR * size)

    @modes.unseen
    def follow(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Take note of an operation that has run: it may move something by such gradients."""
        if self._from and name in _HANDS_ON | _MOVES:
            try:
                self._follow(name, args, kwargs, out)
            except Exception as error:  # noqa: BLE001  # of our own
                self._gave_way(error)

    def _follow(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        moved, by = args[0], args[1] if len(args) > 1 else None
        if name in _HANDS_ON:
            places = [place for one in tensors_of((moved, by)) if (place := self._place(one))]
            for tensor in tensors_of((out,)) if places else ():
                self._holds(tensor, places[0])
            return
        times = float(kwargs.get("alpha", 1))
        for tensor, grad in zip_longest(*(list(tensors_of((one,))) for one in (moved, by))):
            place = "" if tensor is None or grad is None else self._place(grad)
            wide = self._of(grad) if place and not self._place(tensor) else None
            if wide is not None:
                energy = wide.double().square().where(wide.isfinite(), 0.0) * times**2
                gone = energy.where(grad.detach() == 0, 0.0).sum()
                _add(
                    self._moved,
                    place,
                    torch.stack([energy.sum(), gone, tensor.detach().double().square().sum()]),
                )

    def _holds(self, tensor: torch.Tensor, place: str) -> None:
        if readable(tensor):
            storage = tensor.untyped_storage()
            self._from[storage._cdata] = StorageWeakRef(storage), place

    def _place(self, tensor: torch.Tensor) -> str:
        """Return where autograd was asked for the gradients that a tensor holds; '' for another one."""
        held = self._from.get(tensor.untyped_storage()._cdata) if readable(tensor) else None
        return "" if held is None or held[0].expired() else held[1]

    @property
    def overflowed(self) -> bool:
        """Tell whether one is not finite that is finite in FP32."""
        return any(not isfinite(float(sums[0])) for sums in self._found.values())

    def missed(self) -> dict[str, int]:
        """Return what is not audited; tell of what is lost."""
        for place, sums in self._moved.items():
            moves, gone, all_of_it = sums.tolist()
            if gone > _FAR * moves and moves > _MATTERS**2 * all_of_it:
                self._lost(Kind.LOST_GRAD, place)
        found = {place: sums.tolist() for place, sums in self._found.items()}
        for place, zero in self._zero.items():
            if bool(zero):
                self._lost(Kind.RETURNED_ZEROS, place)
        return {
            f"{USE} at {place}, {_words(error, size)}": 1
            for place, (error, size, _) in found.items()
            if size and not error <= _FAR**2 * size
        }


def _words(error: float, size: float) -> str:
    return f"which are off by {percent((error / size) ** 0.5)}" if isfinite(error) else "which are not finite"


def _add(sums: dict[str, torch.Tensor], place: str, more: torch.Tensor) -> None:
    sums[place] = sums[place] + more if place in sums else more
