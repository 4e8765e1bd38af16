"""Numbers that are zero in float16 before they are added to what is followed, and are not in FP32."""

from typing import Any, Protocol

import torch

from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.reference.shadow import Follow
from ampcheck.observe.statistics.memory import readable

#: Operations whose results may be smaller than float16 holds.
_MADE_SMALL = frozenset({"_to_copy", "pow", "mul", "div"})


class References(Protocol):
    """What holds FP32 copies."""

    shapes: set[torch.Size]
    underflows: dict[torch.Size, torch.Tensor]

    def keep(self, tensor: torch.Tensor, wide: torch.Tensor) -> None:
        """Hold FP32's numbers beside a tensor."""


def keeps_small(references: References, name: str, func: Any, args: Args, kwargs: Kwargs) -> Follow | None:
    """Let FP32 keep what underflows in a cast or a product, in order to enter what is followed, as far as shapes tell.

    Where most of it does: rounding is another matter.
    """
    held = [one for one in args if isinstance(one, torch.Tensor)] if name in _MADE_SMALL else []
    casts = kwargs.get("dtype") is torch.float16 and held and held[0].dtype is torch.float32
    if not casts and not any(one.dtype is torch.float16 for one in held):
        return None
    if any(one.requires_grad for one in held) or not any(one.shape in references.shapes for one in held):
        return None
    wide_args = [
        one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in args
    ]

    def keep(out: Any) -> None:
        if out.dtype is torch.float16 and readable(out):  # decided without waiting for a device
            wide = wide_args[0] if casts else func(*wide_args, **kwargs)
            gone = 2 * ((out == 0) & (wide != 0)).sum() > wide.numel()
            known = references.underflows.get(out.shape)
            references.underflows[out.shape] = gone if known is None else known.to(gone.device) | gone
            references.keep(out, torch.where(gone, wide, out.float()))

    return keep
