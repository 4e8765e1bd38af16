"""Numbers that are the same on every machine and in every version of torch, and distances in roundings."""

import math

import torch
from torch import Tensor, nn

_MASK = 0xFFFF_FFFF
#: Bits of a format's mantissa that are stored, and the exponent of its smallest number.
_BITS = {
    torch.float16: (10, -24), torch.bfloat16: (7, -133), torch.float32: (23, -149), "tf32": (10, -136),
}  # fmt: skip


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Return numbers from -scale to scale, without a random generator: those may change from version to version."""
    at = torch.arange(math.prod(shape), dtype=torch.int64) + 1 + seed * 1_000_003
    mixed = (at * 2_654_435_761) & _MASK
    mixed = ((mixed ^ (mixed >> 15)) * 2_246_822_519) & _MASK
    mixed = mixed ^ (mixed >> 13)
    return ((mixed & 0xFFFF).double() / 32768 - 1).reshape(shape).float() * scale


def fill(model: nn.Module) -> nn.Module:
    """Give a model weights of the usual size that are the same everywhere."""
    with torch.no_grad():
        for seed, (name, parameter) in enumerate(model.named_parameters()):
            if parameter.dim() > 1:
                size = (3 / parameter[0].numel()) ** 0.5
                parameter.copy_(numbers(*parameter.shape, seed=seed, scale=size))
            else:
                middle = 1.0 if name.endswith("weight") else 0.0
                parameter.copy_(middle + numbers(*parameter.shape, seed=seed, scale=0.1))
    return model


def spacing(exact: Tensor, dtype: torch.dtype | str) -> Tensor:
    """Return the distance of a format's neighbours at each number; below a tensor's RMS, at the RMS.

    A sum that cancels has no better last bit than its terms had.
    """
    bits, least = _BITS[dtype]
    rms = exact.square().mean().sqrt()
    exponent = torch.frexp(exact.abs().clamp(min=float(rms)))[1] - 1
    return torch.ldexp(torch.ones_like(exact), (exponent - bits).clamp(min=least))


def roundings(got: Tensor, exact: Tensor, dtype: torch.dtype | str) -> Tensor:
    """Return how far results are from others in roundings of a format; where both are no numbers, 0."""
    exact, got = exact.double().flatten(), got.double().flatten()
    finite = exact.isfinite() & got.isfinite()
    unit = spacing(torch.where(finite, exact, torch.zeros_like(exact)), dtype)
    apart = (got - exact).abs() / unit
    same = (exact == got) | (exact.isnan() & got.isnan())
    return torch.where(finite, apart, torch.where(same, 0.0, math.inf))


def levels(apart: Tensor) -> dict[str, float]:
    """Return median, 99th percentile and maximum of some distances."""
    ordered = apart.double().sort().values
    last = len(ordered) - 1
    return {
        "median": _short(ordered[last // 2]),
        "p99": _short(ordered[int(last * 0.99)]),
        "max": _short(ordered[-1]),
    }


def _short(value: Tensor) -> float:
    return float(f"{float(value):.4g}")


def exponents(tensor: Tensor) -> dict[str, int]:
    """Return how many elements lie in each power of two, counted without ampcheck's own kernel."""
    values = tensor.detach().float().flatten()
    finite = values[values.isfinite() & (values != 0)]
    powers, counts = (torch.frexp(finite)[1] - 1).unique(return_counts=True)
    found = {str(power): count for power, count in zip(powers.tolist(), counts.tolist(), strict=True)}
    others = {"zero": values == 0, "inf": values.isinf(), "nan": values.isnan()}
    return found | {name: int(where.sum()) for name, where in others.items() if bool(where.any())}


def moved(one: dict[str, int], other: dict[str, int]) -> float:
    """Return the share of elements that lie in another power of two."""
    keys = one.keys() | other.keys()
    size = max(sum(one.values()), sum(other.values()), 1)
    return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in keys) / (2 * size)
