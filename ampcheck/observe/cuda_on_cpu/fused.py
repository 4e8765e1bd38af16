"""What CUDA does and the CPU does not, made available there.

Autocast's casts are not all of CUDA's dtype flow. Dropout is one kernel that scales in float32; the CPU's
composite rounds the scale to the low dtype first. A float32 softmax of float16 scores reads them directly;
the CPU casts first, and back again in the backward: two operators that CUDA does not run. Fourier transforms of halves
cuFFT has for lengths that are powers of two, and a CPU not at all.
"""

# ruff: noqa: FBT003  schemas take booleans by position

from typing import Any

import torch

from ampcheck.observe.cuda_on_cpu.dispatcher import Kernel, Operator, operator

_aten = torch.ops.aten
_HALF, _FLOAT32 = torch.float16, torch.float32
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_WIDER = {torch.float16: torch.float32, torch.complex32: torch.complex64}
#: Fourier transforms, of lines and of planes.
_LINES = ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft")
_PLANES = (
    "fft_fft2",
    "fft_ifft2",
    "fft_rfft2",
    "fft_irfft2",
    "fft_fftn",
    "fft_ifftn",
    "fft_rfftn",
    "fft_irfftn",
)


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


def fourier_kernels() -> dict[str, Kernel]:
    """Return the kernels to install, by operator."""
    return {f"aten::{name}": _halves(operator(f"aten::{name}"), name) for name in (*_LINES, *_PLANES)}


def _halves(op: Operator, name: str) -> Kernel:
    run = op._op
    default = [-2, -1] if name.endswith("2") else None

    def transform(values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        wide = _WIDER.get(values.dtype) if values.is_cpu else None
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            if wide is None:
                return run(values, *args, **kwargs)
            found = run(values.to(wide), *args, **kwargs)
            given = dict(zip(("sizes", "dims"), args, strict=False))
            sizes, dims = given.get("sizes"), given.get("dims", -1 if name in _LINES else default)
            _refuse_others(values, found, sizes, dims)
            return found.to(torch.complex32 if found.is_complex() else torch.float16)

    return transform


def _refuse_others(values: torch.Tensor, found: torch.Tensor, sizes: Any, dims: Any) -> None:
    """Raise as cuFFT does where a length is no power of two: a real transform has the length of its longer side."""
    if dims is None:
        dims = list(range(-len(sizes) if sizes else -values.dim(), 0))
    dims = [dims] if isinstance(dims, int) else list(dims)
    sizes = (
        [sizes] if isinstance(sizes, int) else list(sizes) if sizes else [values.size(dim) for dim in dims]
    )
    lengths = [max(size, found.size(dim)) for size, dim in zip(sizes, dims, strict=True)]
    if any(length & (length - 1) for length in lengths):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but "
            f"got a signal size of{lengths}"
        )
