"""Units in the last place of numbers in half precision."""

import torch

#: By dtype: numbers on an even grid of so many bits were exact from the start, as codes, counts and images are.
GRIDS = {torch.float16: 9, torch.bfloat16: 7}


#: Elements of a storage that are looked at as a whole; of a larger one only what is read.
_WHOLE = 2**24


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all that a tensor's storage holds, where that is not too much."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((size,), (1,), 0) if size <= _WHOLE else tensor


def unit_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return what one unit in the last place is worth, element by element."""
    info = torch.finfo(tensor.dtype)
    exponent = torch.frexp(tensor.float().abs().clamp_min(info.tiny)).exponent
    return torch.ldexp(torch.full_like(tensor, info.eps, dtype=torch.float32), exponent - 1)


def last_bit(tensor: torch.Tensor) -> float:
    """Return the largest power of two that all numbers are multiples of; 0 where there is none but zero."""
    values = tensor.detach().double().flatten()
    values = values[values.isfinite() & (values != 0)]
    if not values.numel():
        return 0.0
    mantissa, exponent = torch.frexp(values)
    whole = (mantissa * 2.0**53).long()
    return float(torch.ldexp((whole & -whole).double(), exponent - 53).min())


def is_grid(tensor: torch.Tensor, bits: int) -> bool:
    """Tell whether all numbers are integers of so many bits, times one power of two.

    Not where that is the smallest number of their format: rounding leaves multiples of it of whatever was there.
    """
    finite = tensor.detach().double().abs().flatten()
    finite = finite[finite.isfinite()]
    if not finite.any():
        return True
    info, step = torch.finfo(tensor.dtype), last_bit(tensor)
    return info.tiny * info.eps < step and float(finite.max()) < 2.0**bits * step
