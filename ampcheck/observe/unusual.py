"""What can be read of tensors beyond the plain ones: sparse, subclassed, nested, transformed."""

from typing import Any

import torch

from ampcheck.observe.model.structure import is_lazy
from ampcheck.observe.reference.sharing import local
from ampcheck.observe.reference.storage import COMPRESSED

TRANSFORMED = "inputs and outputs of modules inside function transforms"
_NO_DISPATCH = frozenset({torch._C._disabled_torch_dispatch_impl, torch.Tensor.__torch_dispatch__})


def readable(tensor: torch.Tensor) -> torch.Tensor | str:  # noqa: PLR0911  # one line a kind
    """Return the plain tensor of the numbers that a tensor stores, or what to call it where there is none."""
    tensor = local(tensor)
    kind = type(tensor)
    with torch._C.DisableTorchFunction():
        if is_lazy(tensor):
            return "parameters that never got a shape"
        if kind.__torch_dispatch__ not in _NO_DISPATCH:
            return f"tensors of type {kind.__name__}, of which only the operations inside are seen"
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return TRANSFORMED
        if tensor.layout is torch.strided and not tensor.is_nested:
            return tensor.as_subclass(torch.Tensor)
        if tensor.layout is torch.sparse_coo:
            return tensor.detach()._values()
        if tensor.layout in COMPRESSED:
            return tensor.detach().values()
        layout = str(tensor.layout).removeprefix("torch.")
        return f"nested tensors ({layout})" if tensor.is_nested else f"tensors of layout {layout}"


def plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return this rank's part of a tensor where torch's own kernels may read it, None for any other.

    Where dispatch is switched off, a kernel that meets a subclass without memory of its own ends the process.
    """
    part = None if tensor is None else local(tensor)
    return None if part is None or isinstance(readable(part), str) else part


def in_memory(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor lies within the memory of its storage, which may be freed or shrunk under it.

    An operation has just written its results; this is for tensors that come from elsewhere.
    """
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return tensor.numel() == 0 or bool(end <= tensor.untyped_storage().nbytes())


def unwrapped(given: Any) -> Any:
    """Return the tensor inside of what torch.func differentiates by."""
    while isinstance(given, torch.Tensor) and torch._C._functorch.is_gradtrackingtensor(given):
        given = torch._C._functorch.get_unwrapped(given)
    return given
