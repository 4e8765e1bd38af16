"""Fourier transforms of halves, which cuFFT has for lengths that are powers of two, and a CPU not at all."""

from typing import Any

import torch

from ampcheck.observe.cuda_on_cpu.dispatcher import Kernel, Operator, operator

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_WIDER = {torch.float16: torch.float32, torch.complex32: torch.complex64}
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
