"""Memory that was last written by copying all of something else: that rounds once, and adds nothing up."""

import torch

from ampcheck.observe.statistics.memory import readable


class Copies:
    """Remembers the storages of such memory."""

    def __init__(self) -> None:
        self._storages: set[int] = set()

    def note(self, op: str, targets: list[torch.Tensor]) -> None:
        """Take note of what an operation writes."""
        for target in targets:
            if readable(target):
                storage = target.untyped_storage()
                whole = op == "copy_" and target.numel() * target.element_size() == storage.nbytes()
                (self._storages.add if whole else self._storages.discard)(storage._cdata)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is a copy."""
        return readable(tensor) and tensor.untyped_storage()._cdata in self._storages
