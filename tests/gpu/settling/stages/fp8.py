"""Stage h: emulated products of eight-bit operands against the card's own, with the same scales."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ampcheck.observe.fp8.casts import rounded
from ampcheck.values.recipes import Cast, Grain
from settling.fixed import levels, numbers, roundings
from settling.keep import Row
from settling.plan import Scope
from settling.work import Job

_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
_LENGTHS = (256, 4096)
#: Compute capability of the oldest card with such units.
_OLDEST = (8, 9)


def jobs(scope: Scope) -> Iterator[Job]:
    """Yield a row for each pair of formats, grain, length and way to add up."""
    for length in _LENGTHS[:1] if scope.small else _LENGTHS:
        for grain in (Grain.TENSOR, Grain.ROW):
            for formats in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2")):
                for fast in (False, True):
                    sums = "fast sums" if fast else "full sums"
                    key = f"{formats[0]} x {formats[1]} | {grain} | {length} | {sums}"
                    yield Job(key, partial(compared, formats, grain, length, fast, scope.device))


def compared(formats: tuple[str, str], grain: Grain, length: int, fast: bool, device: str) -> Row:
    """Return how far the card's product is from the emulated one, and both from float64, in roundings of bf16."""
    if device == "cuda" and torch.cuda.get_device_capability() < _OLDEST:
        return {"skipped": "this card has no units for eight bits"}
    left = numbers(128, length, seed=600) * numbers(128, length, seed=601).mul(3).exp()
    right = numbers(64, length, seed=602)
    a, b = (rounded(x, Cast(name, grain)) for x, name in zip((left, right), formats, strict=True))
    held: list[Any] = [x.held.to(_DTYPES[name]).to(device) for x, name in zip((a, b), formats, strict=True)]
    scales = [(1 / x.scale).float().reshape(-1, 1).to(device) for x in (a, b)]
    tensorwise = grain is Grain.TENSOR
    try:
        card = torch._scaled_mm(
            held[0], held[1].t(),
            scale_a=scales[0].squeeze() if tensorwise else scales[0].contiguous(),
            scale_b=scales[1].squeeze() if tensorwise else scales[1].t().contiguous(),
            out_dtype=torch.bfloat16, use_fast_accum=fast,
        ).cpu()  # fmt: skip
    except (RuntimeError, ValueError) as error:
        if tensorwise or "e5m2" not in formats:
            raise
        return {"skipped": f"torch has no such product: {str(error).splitlines()[0][:160]}"}
    emulated = (a.values @ b.values.mT).bfloat16()
    exact = a.values.double() @ b.values.double().mT
    return {
        "apart": levels(roundings(card, emulated, torch.bfloat16)),
        "card": levels(roundings(card, exact, torch.bfloat16)),
        "emulation": levels(roundings(emulated, exact, torch.bfloat16)),
    }
