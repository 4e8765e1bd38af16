"""Dropout on CUDA that drops the same numbers in every precision: runs of a step can then be compared.

CUDA's kernel of dropout gives each thread as many numbers as fit into a load, so float16 and float32 draw other masks
from the same seed. Here the mask is always drawn as float32 draws it. Fused attention draws by the kernel, which is
another one for float32: it drops nothing. What cuDNN's recurrent layers drop is the same in every precision.
"""

import functools
from contextlib import AbstractContextManager
from typing import Any

import torch

from ampcheck.observe.cuda_on_cpu.dispatcher import Installation, Kernel
from ampcheck.observe.dtypes import HALVES

_aten = torch.ops.aten


def same_draws() -> AbstractContextManager[None]:
    """Install the kernels on CUDA's dispatch keys, until exit."""
    return _installation.used()


@functools.cache
def _kernels() -> dict[str, dict[str, Kernel]]:
    return {
        "AutogradCUDA": {"aten::scaled_dot_product_attention": attention},
        "CUDA": {"aten::native_dropout": dropout_on("CUDA")},
    }


def dropout_on(key: str) -> Kernel:
    """Return a kernel of dropout that draws its mask as that of a dispatch key does for float32."""
    native = torch.library.get_kernel("aten::native_dropout", key)

    def dropout(values: torch.Tensor, p: float, train: bool | None) -> Any:  # noqa: FBT001
        if values.dtype not in HALVES and values.dtype is not torch.float32:
            return native.call_boxed(torch._C._dispatch_keys(values), values, p, train)
        wide = torch.empty(values.shape, dtype=torch.float32, device=values.device).copy_(values)
        kept, mask = native.call_boxed(torch._C._dispatch_keys(wide), wide, p, train)
        as_given = torch.empty_like(values)
        return as_given.copy_(kept), torch.empty_like(as_given, dtype=torch.bool).copy_(mask)

    return dropout


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    _dropout_p: float = 0.0,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compute fused attention without dropout."""
    whole = _aten.scaled_dot_product_attention.default
    return whole.decompose(query, key, value, attn_mask, 0.0, *args, **kwargs)


_installation = Installation(_kernels)
