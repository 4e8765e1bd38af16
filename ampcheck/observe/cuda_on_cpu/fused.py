"""What C++ composites do on CUDA and not on the CPU, made available there.

Autocast's casts are not all of CUDA's dtype flow. Dropout is one kernel that scales in float32; the CPU's
composite rounds the scale to the low dtype first. A float32 softmax of float16 scores reads them directly;
the CPU casts first, and back again in the backward: two operators that CUDA does not run.
"""

# ruff: noqa: FBT003  schemas take booleans by position

from typing import Any

import torch

from ampcheck.observe.cuda_on_cpu.dispatcher import Kernel

_aten = torch.ops.aten
_HALF, _FLOAT32 = torch.float16, torch.float32


def fused_kernels() -> dict[str, dict[str, Kernel]]:
    """Return the kernels to install, by dispatch key and operator."""
    return {
        "AutogradCPU": {"aten::dropout": _dropout},
        "CPU": {f"aten::{name}": _softmax(name) for name in ("_softmax", "_log_softmax")}
        | {f"aten::{name}_backward_data": _softmax_backward(name) for name in ("_softmax", "_log_softmax")},
    }


def reads_half(name: str, unfused: Kernel) -> Kernel:
    """Return the autocast kernel of a softmax: float16 goes to the operator as it is, else `unfused`."""
    fused = getattr(_aten, name).default._op

    def softmax(scores: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if scores.dtype is _HALF and scores.is_cpu and dtype in {None, _FLOAT32}:
            return fused(scores, dim, True)
        return unfused(scores, dim, dtype)

    return softmax


def _dropout(values: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # noqa: FBT001
    # The condition under which CUDA takes its own kernel. The mask is drawn as before: same draws, same
    # values.
    if train and 0 < p < 1 and values.numel() > 0:
        dropped, _ = _aten.native_dropout.default(values, p, True)
        return dropped  # type: ignore[no-any-return]
    return _aten.dropout.default.decompose(values, p, train)  # type: ignore[no-any-return]


def _softmax(name: str) -> Kernel:
    native = torch.library.get_kernel(f"aten::{name}", "CPU")

    def softmax(scores: torch.Tensor, dim: int, half_to_float: bool) -> Any:  # noqa: FBT001
        if half_to_float:
            scores = scores.to(_FLOAT32)
        return native.call_boxed(torch._C._dispatch_keys(scores), scores, dim, False)

    return softmax


def _softmax_backward(name: str) -> Kernel:
    native = torch.library.get_kernel(f"aten::{name}_backward_data", "CPU")

    def softmax_backward(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> Any:
        result = native.call_boxed(torch._C._dispatch_keys(grad), grad, output, dim, grad.dtype)
        return result.to(input_dtype)

    return softmax_backward
