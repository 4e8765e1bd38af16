"""Tensors in FP32 that a script holds outside of its models, and that a step makes infinite, NaN or others than FP32's.

Such as sums of what hooks are given. How large they are depends on the loss scale; whether they are finite does not.
"""

from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.model.held import apart
from ampcheck.observe.reference.joined import Joined
from ampcheck.observe.script.state.naming import names_of
from ampcheck.observe.statistics.memory import instances, readable
from ampcheck.observe.unusual import in_memory

#: Elements of a tensor that is followed on.
_MOST = 2**24


class Ruined:
    """Tensors that were there before a step, and are not finite after it, where FP32's are."""

    def __init__(self, shadow: Joined) -> None:
        self._shadow = shadow
        self._there: dict[int, StorageWeakRef] = {}  #: storages

    def remember(self) -> None:
        """Take note of what is there."""
        storages = [tensor.untyped_storage() for tensor in _wide()]
        self._there = {one._cdata: StorageWeakRef(one) for one in storages}

    def was_there(self, place: int) -> bool:
        """Tell whether a storage was there when the step began."""
        held = self._there.get(place)
        return held is not None and not held.expired()

    def names(self, others: Iterable[torch.Tensor]) -> list[str]:
        """Return what the script calls them; none of the `others`, nor what lies in their memory."""
        known = {one.untyped_storage()._cdata for one in others if readable(one)}
        found = []
        for tensor in _wide() if self._there else ():
            place = tensor.untyped_storage()._cdata
            if not self.was_there(place) or place in known:
                continue
            wide = self._shadow.of(tensor)
            if wide is not None and bool((wide.isfinite() & ~tensor.isfinite()).any()):
                found.append(tensor)
        return sorted(set(names_of(found).values())) if found else []

    def apart(self, others: Iterable[torch.Tensor], scale: float) -> list[torch.Tensor]:
        """Return those that are others than FP32's, whatever power of the `scale` multiplies them; no large ones."""
        known = {one.untyped_storage()._cdata for one in others if readable(one)}
        powers = (1, -1, 2, -2) if scale > 0.0 and scale != 1.0 else ()
        found = []
        for tensor in _wide():
            wide = self._shadow.of(tensor) if tensor.numel() <= _MOST else None
            if wide is None or torch.equal(wide, tensor) or tensor.untyped_storage()._cdata in known:
                continue
            off = apart(wide, tensor)
            found += [tensor] * all(off <= apart(wide * scale**power, tensor) for power in powers)
        return found


def _wide() -> list[torch.Tensor]:
    """Return the tensors in FP32 that are there, and that no gradient flows to."""
    return [
        tensor
        for tensor in instances(torch.Tensor)
        if tensor.dtype is torch.float32
        and not tensor.requires_grad
        and readable(tensor)
        and in_memory(tensor)
    ]
