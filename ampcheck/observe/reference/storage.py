"""Where FP32's numbers are: beside a storage, in full or in part; sparse tensors have a plain memory as any other."""

from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from ampcheck.values.trace import Site

COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
_BY_ROW = frozenset({torch.sparse_csr, torch.sparse_bsr})


class Reference:
    """The FP32 numbers of a storage; of a large one only what was used of it is filled in."""

    __slots__ = ("flat", "known", "made", "storage")

    def __init__(self, storage: torch.UntypedStorage, flat: torch.Tensor, known: range | None = None) -> None:
        """Begin with what is known of a storage: the whole by default."""
        self.storage = StorageWeakRef(storage)
        self.flat = flat  #: as many elements as the storage has
        self.known = known  #: the elements that are filled in, None for all
        self.made: Site | None = None  #: what has made the storage, where that was outside of the step

    def covers(self, tensor: torch.Tensor) -> bool:
        """Tell whether it has as many elements as a tensor's storage: that may be seen as another dtype."""
        held, seen = self.flat.numel(), tensor.untyped_storage().nbytes() // tensor.element_size()
        return held == seen or _parts(self.flat, held) == _parts(tensor, seen)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands beside a tensor of this storage: complex numbers or their parts, as the tensor has."""
        if tensor.is_complex() != self.flat.is_complex():
            self._turn(tensor)
        if self.known is not None and tensor.numel():
            self.fill(tensor)
        found = self.flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        found = found.conj() if tensor.is_conj() else found
        return torch._neg_view(found) if tensor.is_neg() else found

    def fill(self, tensor: torch.Tensor) -> None:
        """Fill in what is not known yet of a tensor, and of what lies between: the numbers that it holds."""
        assert self.known is not None
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.storage_offset()
        if not self.known:
            self.known = range(start, start)
        low, high = min(start, self.known.start), max(start + reach + 1, self.known.stop)
        memory = _in_memory(tensor, self.flat.numel())
        for missing in (range(low, self.known.start), range(self.known.stop, high)):
            if missing:
                self.flat[missing.start : missing.stop] = memory[missing.start : missing.stop]
        self.known = range(low, high)

    def _turn(self, tensor: torch.Tensor) -> None:
        """See complex numbers as their parts, or the other way round, as a tensor of this storage has them."""
        if self.known is not None:
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            self.fill(_turned(_in_memory(tensor, size)))
        self.flat, self.known = _turned(self.flat), None


def _parts(tensor: torch.Tensor, elements: int) -> int:
    """Return how many real numbers some of a tensor's elements are."""
    return 2 * elements if tensor.is_complex() else elements


def _turned(numbers: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as their parts one after another, or the other way round."""
    if numbers.is_complex():
        return torch.view_as_real(numbers).view(-1)
    return torch.view_as_complex(numbers.view(-1, 2))


def _in_memory(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return so many elements of a tensor's storage, as they lie there."""
    held = tensor.detach()
    held = held.conj() if held.is_conj() else held
    held = torch._neg_view(held) if held.is_neg() else held
    return held.as_strided((size,), (1,), 0)


def is_sparse(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor holds its elements beside their indices."""
    return tensor.layout is torch.sparse_coo or tensor.layout in COMPRESSED


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements that a sparse tensor holds; any other tensor is its own memory."""
    if tensor.layout is torch.sparse_coo:
        return tensor.detach()._values()
    return tensor.detach().values() if tensor.layout in COMPRESSED else tensor


def holding(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor like another one, with other elements."""
    plain = tensor.detach()
    if plain.layout is torch.sparse_coo:
        made = torch.sparse_coo_tensor(plain._indices(), values, plain.shape, check_invariants=False)
        return made._coalesced_(plain.is_coalesced())
    rows = plain.layout in _BY_ROW
    inner = (
        (plain.crow_indices(), plain.col_indices()) if rows else (plain.ccol_indices(), plain.row_indices())
    )
    shape, layout = plain.shape, plain.layout
    return torch.sparse_compressed_tensor(*inner, values, shape, layout=layout, check_invariants=False)
