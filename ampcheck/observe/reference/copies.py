"""Memory that was last written by copying all of something kept in FP32: that rounds once, and adds nothing up.

What is copied must not be computed from half precision itself, as an average is that a copy writes back.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.statistics.memory import readable

EXACT = (torch.float32, torch.float64)


class Copies:
    """Remembers the storages of such memory."""

    def __init__(self) -> None:
        # Weak references keep an address from being given to something else.
        self._copies: dict[int, StorageWeakRef] = {}
        self._weights: dict[int, StorageWeakRef] = {}  #: in FP32, changed by the step

    def note(
        self,
        targets: list[torch.Tensor],
        source: torch.Tensor | None,
        reference: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> None:
        """Take note of what an operation writes, and of what it copies, if it only copies."""
        kept = source is not None and self._is_kept(source, reference)
        for target in targets:
            if readable(target):
                storage = target.untyped_storage()
                if kept and target.numel() * target.element_size() == storage.nbytes():
                    self._copies[storage._cdata] = StorageWeakRef(storage)
                else:
                    self._copies.pop(storage._cdata, None)
                if isinstance(target, nn.Parameter) and target.dtype in EXACT:
                    self._weights[storage._cdata] = StorageWeakRef(storage)

    def _is_kept(
        self, source: torch.Tensor, reference: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> bool:
        if source.dtype not in EXACT or not readable(source):
            return False
        return source.untyped_storage()._cdata in self._weights or reference(source) is None

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is a copy."""
        return readable(tensor) and tensor.untyped_storage()._cdata in self._copies
