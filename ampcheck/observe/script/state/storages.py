"""The memory that lies behind tensors, and all of it as one tensor."""

import torch

from ampcheck.observe.reference.storage import Reference


def key_of(tensor: torch.Tensor) -> int:
    """Return what tells the memory of a tensor from others."""
    place: int = tensor.untyped_storage()._cdata
    return place


def fp32_memory(reference: Reference) -> torch.Tensor | None:
    """Return what stands in FP32 memory beside a reference; None where that is gone, or not known in full."""
    size = reference.flat.numel()
    if reference.known is not None and len(reference.known) < size:
        return None
    storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(reference.storage.cdata)
    if storage is None or storage.nbytes() != 4 * size:
        return None
    return whole(storage)


def whole(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return all of a memory as one FP32 tensor."""
    return torch.empty(0, dtype=torch.float32, device=storage.device).set_(storage)


def is_whole(tensor: torch.Tensor) -> bool:
    """Tell whether an FP32 tensor is all of its memory."""
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == 4 * tensor.numel()
