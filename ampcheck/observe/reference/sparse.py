"""Sparse tensors beside FP32: what they hold is plain memory, and has a reference as any other."""

import torch

COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
_BY_ROW = frozenset({torch.sparse_csr, torch.sparse_bsr})


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
