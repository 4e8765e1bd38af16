"""Rounding a tensor as a cast of a recipe says, on any device.

The contraction is always the last dimension; leading dimensions beyond two are separate matrices (experts).
"""

from typing import NamedTuple

import torch
from torch.nn.functional import pad

from ampcheck.values.recipes import Cast, Grain, Scaling

MAXIMA = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
#: Beyond these a number is cut off, and not merely rounded to the largest one.
CUT_OFF = {"e4m3": 464.0, "e5m2": 61440.0, "e2m1": 7.0}
_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
#: Exponent of the largest power of two that a format holds.
_TOP_EXPONENT = {"e4m3": 8, "e5m2": 15}
_FLOAT32_MAX = torch.finfo(torch.float32).max
_E4M3_MAX = 448.0
_E8M0_RANGE = (-127, 127)
#: Of the Hadamard transform: TransformerEngine uses the same signs in every step.
_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


class Rounded(NamedTuple):
    """A rounded tensor."""

    values: torch.Tensor  #: as the GEMM sees them, in FP32
    scaled: torch.Tensor  #: what the format was given, padded to whole blocks
    held: torch.Tensor  #: what the format holds of that
    scale: torch.Tensor  #: by which it was multiplied


def rounded(
    x: torch.Tensor, cast: Cast, scale: torch.Tensor | None = None, generator: torch.Generator | None = None
) -> Rounded:
    """Return a tensor of FP32 rounded by a cast; `scale` is the one that delayed scaling brings along."""
    if cast.hadamard:
        return _transformed(x, cast, generator)
    if cast.scaling is Scaling.NVFP4:
        return _four_bit(x, cast, generator)
    parts, length = (x, None) if cast.grain in (Grain.TENSOR, Grain.ROW) else _blocks(x, cast.block)
    factor = scale if scale is not None else _factor(_amax(parts, cast), cast)
    scaled = parts * factor
    held = in_format(scaled, cast.format)
    values = held / factor
    return Rounded(values if length is None else values.flatten(-2)[..., :length], scaled, held, factor)


def in_format(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return numbers as an 8-bit format holds them, saturated at its ends, in FP32."""
    top = MAXIMA[name]
    return x.clamp(-top, top).to(_DTYPES[name]).float()


def delayed_scale(amax: torch.Tensor, cast: Cast) -> torch.Tensor:
    """Return the scale that a largest magnitude of earlier steps asks for."""
    margin = cast.history.margin if cast.history is not None else 0
    factor: torch.Tensor = (MAXIMA[cast.format] * 2.0**-margin / amax).clamp(max=_FLOAT32_MAX)
    return factor


def _amax(parts: torch.Tensor, cast: Cast) -> torch.Tensor:
    """Return the largest magnitude of those that share a scale, in a shape that multiplies."""
    size = parts.abs()
    if cast.grain is Grain.TENSOR:
        return size.amax((-2, -1), keepdim=True)
    row = size.amax(-1, keepdim=True)
    return _over_rows(row, cast.block) if cast.grain is Grain.SQUARE else row


def _over_rows(amax: torch.Tensor, block: int) -> torch.Tensor:
    """Return the largest of `block` rows for each of them; rows are the third dimension from the end."""
    across = amax.squeeze(-1).transpose(-2, -1)
    parts, rows = _blocks(across, block)
    same = parts.amax(-1, keepdim=True).expand_as(parts).flatten(-2)[..., :rows]
    return same.transpose(-2, -1).unsqueeze(-1)


def _blocks(x: torch.Tensor, size: int) -> tuple[torch.Tensor, int]:
    """Return the last dimension in blocks, filled up with zeros, and how long it was."""
    length = x.shape[-1]
    missing = -length % size
    return (pad(x, (0, missing)) if missing else x).unflatten(-1, (-1, size)), length


def _factor(amax: torch.Tensor, cast: Cast) -> torch.Tensor:
    """Return the scale for a largest magnitude."""
    if cast.scaling in (Scaling.E8M0_UP, Scaling.E8M0_FLOOR):
        return _e8m0(amax, cast)
    wide = amax.double()
    factor = (MAXIMA[cast.format] / (wide.clamp(min=cast.least) if cast.least else wide)).float()
    factor = factor.clamp(max=_FLOAT32_MAX)
    empty = ~torch.isfinite(amax) if cast.least else (amax == 0) | ~torch.isfinite(amax)
    factor = torch.where(empty, torch.ones_like(factor), factor)
    if cast.scaling is Scaling.POWER_DOWN:
        factor = (factor.contiguous().view(torch.int32) & ~0x7FFFFF).view(torch.float32)
    return factor


def _e8m0(amax: torch.Tensor, cast: Cast) -> torch.Tensor:
    if cast.scaling is Scaling.E8M0_UP:
        mantissa, exponent = torch.frexp(amax / MAXIMA[cast.format])
        exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)  # noqa: PLR2004  # frexp of a power of two
    else:
        exponent = torch.frexp(amax)[1] - 1 - _TOP_EXPONENT[cast.format]
    exponent = torch.where(amax == 0, torch.zeros_like(exponent), exponent).clamp(*_E8M0_RANGE)
    return torch.ldexp(torch.ones_like(amax), -exponent)


def _four_bit(x: torch.Tensor, cast: Cast, generator: torch.Generator | None) -> Rounded:
    parts, length = _blocks(x, cast.block)
    amax = _amax(parts, cast)
    whole = amax.amax((-3, -2, -1), keepdim=True) / (_E4M3_MAX * MAXIMA["e2m1"])
    whole = torch.where(whole == 0, torch.ones_like(whole), whole)
    of_block = in_format(amax / MAXIMA["e2m1"] / whole, "e4m3")
    factor = torch.where(of_block > 0, (1.0 / whole) / of_block, torch.zeros_like(of_block))
    scaled = parts * factor
    held = e2m1(scaled, generator if cast.stochastic else None, by_chance=cast.stochastic)
    return Rounded((held * (of_block * whole)).flatten(-2)[..., :length], scaled, held, factor)


def e2m1(
    x: torch.Tensor, generator: torch.Generator | None = None, *, by_chance: bool = False
) -> torch.Tensor:
    """Return numbers as E2M1 holds them (0, 0.5, 1, 1.5, 2, 3, 4, 6), to nearest even or by chance."""
    size = x.abs().clamp(max=MAXIMA["e2m1"])
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))  # noqa: PLR2004  # its binades
    steps = size / step
    chance = torch.rand(x.shape, generator=generator, device=x.device) if by_chance else None
    steps = steps.round() if chance is None else (steps + chance).floor()
    return torch.copysign((steps * step).clamp(max=MAXIMA["e2m1"]), x)


def _transformed(x: torch.Tensor, cast: Cast, generator: torch.Generator | None) -> Rounded:
    """Round a Hadamard transform and undo it: of both operands of one GEMM it cancels."""
    turn = hadamard(cast.block).to(x.device)
    parts, length = _blocks(x, cast.block)
    result = _four_bit((parts @ turn).flatten(-2), cast, generator)
    back = (_blocks(result.values, cast.block)[0] @ turn.t()).flatten(-2)[..., :length]
    return result._replace(values=back)


def hadamard(size: int) -> torch.Tensor:
    """Return TransformerEngine's transform: a Hadamard matrix whose rows have fixed signs."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    signs = torch.tensor(_SIGNS[:size], dtype=torch.float32)
    turned: torch.Tensor = signs[:, None] * matrix / size**0.5
    return turned
