"""What an optimizer holds in half precision beside half weights: its moments, and an eps that may be zero there."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ampcheck.values.wording import percent, plural

#: Share of an optimizer's moments that have to be lost, or off, before they are worth a sentence.
LOST = 0.01
_HALF = 2  #: bytes

#: Tensors by what they are and by the parameter they belong to.
Moments = dict[tuple[str, str], torch.Tensor]


def moments(optimizer: Any, names: Mapping[int, str]) -> Moments:
    """Return what an optimizer holds of each parameter in the parameter's shape; `names` are by identity."""
    found = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            alike = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if alike and value.is_floating_point():
                found[key, names.get(id(parameter), "")] = value.detach().double()
    return found


def words(wide: Moments, low: Moments, precision: str) -> Iterator[str]:
    """Yield a sentence for each kind of moment that half precision loses."""
    for key in dict.fromkeys(key for key, _ in low):
        pairs = [(wide[at], low[at]) for at in low if at[0] == key and at in wide]
        live = sum(int((a != 0).sum()) for a, _ in pairs)
        zero = sum(int(((a != 0) & ((b == 0) | ~b.isfinite())).sum()) for a, b in pairs)
        if live and zero > LOST * live:
            yield (
                f"{key} of {plural(len(pairs), 'parameter')} is held in {precision}: {percent(zero / live)} of it is "
                "zero or not finite where FP32 has a number; keep it in FP32"
            )


def never_decays(optimizer: Any, dtype: torch.dtype) -> str:
    """Return that second moments in a dtype never shrink, since a step takes less off than rounding puts back."""
    betas = [group["betas"][1] for group in optimizer.param_groups if isinstance(group.get("betas"), tuple)]
    held = any(parameter.dtype is dtype for group in optimizer.param_groups for parameter in group["params"])
    half_ulp = torch.finfo(dtype).eps / 4  # of a mantissa just below 2, where it is smallest
    if dtype.itemsize != _HALF or not held or not betas or 1 - max(betas) >= half_ulp:
        return ""
    return (
        f"with a beta of {max(betas):g} second moments held in {str(dtype).removeprefix('torch.')} can only grow: a "
        f"step takes {percent(1 - max(betas))} off, half a unit in the last place is {percent(half_ulp)} or more"
    )


def vanishing_eps(optimizer: Any, dtype: torch.dtype) -> float:
    """Return an eps that is zero in a dtype in which it is added to moments; 0 where there is none."""
    for group in optimizer.param_groups:
        held = any(parameter.dtype is dtype for parameter in group["params"])
        eps = group.get("eps", 0.0)
        if held and dtype.itemsize == _HALF and eps and float(torch.tensor(eps).to(dtype)) == 0.0:
            return float(eps)
    return 0.0


def with_eps(optimizer: Any, eps: float) -> None:
    """Give every group of an optimizer an eps."""
    for group in optimizer.param_groups:
        if "eps" in group:
            group["eps"] = eps
