"""TF32 on a CPU: the operands of products rounded to 10 bits of mantissa, the sums in FP32."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ampcheck.observe.cuda_on_cpu.wide import heavy

_DROPPED = 13  #: bits of an FP32 mantissa that TF32 does not have


def to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor rounded to TF32, ties away from zero as cvt.rna does; inf and NaN stay."""
    if tensor.dtype is not torch.float32 or tensor.layout is not torch.strided:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    rounded = ((bits + (1 << (_DROPPED - 1))) & -(1 << _DROPPED)).view(torch.float32)
    return torch.where(tensor.isfinite(), rounded.view(tensor.shape), tensor)


class RoundedProducts(TorchDispatchMode):
    """Rounds what matrix products and convolutions take, forward and backward."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        """Prepare to run operators."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotations here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func` on rounded operands where it multiplies matrices."""
        if func not in heavy():
            return func(*args, **(kwargs or {}))
        # The first operand of an addmm is added, not multiplied: on CUDA it stays FP32.
        start = 1 if "add" in func._schema.name.partition("::")[2] else 0
        rounded = [
            arg if at < start else tree_map_only(torch.Tensor, to_tf32, arg) for at, arg in enumerate(args)
        ]
        return func(*rounded, **(kwargs or {}))
