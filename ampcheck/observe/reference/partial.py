"""The FP32 numbers of a storage, of which only as much is filled in as was used of a large one."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class Reference:
    """The FP32 numbers of a storage; of a large one only what was used of it is filled in."""

    __slots__ = ("flat", "known", "storage")

    def __init__(self, storage: torch.UntypedStorage, flat: torch.Tensor, known: range | None = None) -> None:
        """Begin with what is known of a storage: the whole by default."""
        self.storage = StorageWeakRef(storage)
        self.flat = flat  #: as many elements as the storage has
        self.known = known  #: the elements that are filled in, None for all

    def fill(self, tensor: torch.Tensor) -> None:
        """Fill in what is not known yet of a tensor, and of what lies between: the numbers that it holds."""
        assert self.known is not None
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.storage_offset()
        if not self.known:
            self.known = range(start, start)
        low, high = min(start, self.known.start), max(start + reach + 1, self.known.stop)
        for missing in (range(low, self.known.start), range(self.known.stop, high)):
            if missing:
                size = (len(missing),)
                self.flat[missing.start : missing.stop] = tensor.detach().as_strided(
                    size, (1,), missing.start
                )
        self.known = range(low, high)
