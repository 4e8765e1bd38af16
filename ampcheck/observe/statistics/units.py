"""Units in the last place of numbers in half precision."""

import torch

#: By dtype: numbers on an even grid of so many bits were exact from the start, as codes, counts and images are.
GRIDS = {torch.float16: 9, torch.bfloat16: 7}


def unit_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return what one unit in the last place is worth, element by element."""
    info = torch.finfo(tensor.dtype)
    exponent = torch.frexp(tensor.float().abs().clamp_min(info.tiny)).exponent
    return torch.ldexp(torch.full_like(tensor, info.eps, dtype=torch.float32), exponent - 1)


def is_grid(tensor: torch.Tensor, bits: int) -> bool:
    """Tell whether all numbers are integers of so many bits, times one power of two."""
    values = tensor.detach().double().flatten()
    values = values[values.isfinite() & (values != 0)]
    if not values.numel():
        return True
    mantissa, exponent = torch.frexp(values)
    whole = (mantissa * 2.0**53).long()
    last = torch.ldexp((whole & -whole).double(), exponent - 53)
    return bool(values.abs().max() < 2.0**bits * last.min())
