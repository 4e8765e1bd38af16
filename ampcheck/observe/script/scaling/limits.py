"""The limits that gradients are clipped to: whether they are multiplied by the loss scale, as the gradients are."""

from typing import Any

import torch

from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE
from ampcheck.values.loop import IN_SCALE, PERHAPS

#: Limits that people choose for gradients that are not scaled.
_USUAL = (1e-3, 1e3)
#: The smallest part of the scale that a limit may be and still, perhaps, be multiplied by it.
_LEAST = 1.0 / 64.0


def limit_of(args: tuple[Any, ...], kwargs: dict[str, Any], *, may_wait: bool) -> float:
    """Return the limit that a function of torch's is called with, 0 for none, or one that a GPU would be waited for."""
    names = ("max_norm", "clip_value")
    given = next((kwargs[name] for name in names if name in kwargs), args[0] if args else None)
    if isinstance(given, torch.Tensor):
        if given.numel() != 1 or not (given.is_cpu or may_wait):
            return 0.0
        with unseen():
            return float(given)
    return float(given) if isinstance(given, (int, float)) else 0.0


def unit_of(limit: float, scale: float, *, read: bool, at_hand: bool) -> str:
    """Return whether a limit is multiplied by the loss scale.

    The script has `read` the scale at some time, or has it `at_hand` where it clips. A limit that nobody would choose
    for gradients as they are, and that is a usual one times the scale, is multiplied by it if the scale was ever read.
    """
    least, most = _USUAL
    if not limit or scale < SMALLEST_SCALE:
        return ""
    if limit > most and limit >= least * scale:
        return IN_SCALE if read or at_hand else PERHAPS
    return PERHAPS if at_hand and limit >= _LEAST * scale else ""
