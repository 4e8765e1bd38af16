"""Elements that a step picks, by an argmin or a topk: the script's pick decides for FP32 too, so it is judged here.

A pick among nearly equal elements is as good as another. So what counts is how much worse the script's pick is by
FP32's own numbers, beside how far FP32's pick is from the average element.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ampcheck.observe.source import running_line
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.wording import location

#: Operations that pick along a dimension.
PICKS = frozenset({"argmin", "argmax", "topk", "min", "max", "_to_copy"})
#: What turns numbers into integers: indices, mostly.
CONVERTS = "_to_copy"
_INTEGERS = frozenset({torch.int64, torch.int32})
#: What is not audited where picks are worse, behind the operation and its line.
WORSE = "picks other elements than FP32 would: the gradients are compared at the script's picks"


class Picks:
    """Compares what a step picks with what FP32 picks."""

    def __init__(self) -> None:
        self._found: dict[str, torch.Tensor] = {}  #: by place: how much worse, and beside what

    def note(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, wide: Any) -> None:
        """Take note of a pick; `args` are FP32's, as is the result `wide`."""
        picked, best = (one if isinstance(one, torch.Tensor) else one[1] for one in (out, wide))
        values = args[0]
        if picked.dtype not in _INTEGERS or not values.is_floating_point() or not torch.is_grad_enabled():
            return
        if name == CONVERTS:
            other = (picked != best).sum()
            self._add(
                "a conversion to integers", torch.stack([other, torch.full_like(other, picked.numel())])
            )
            return
        at = 2 if name == "topk" else 1
        dim = args[at] if len(args) > at else kwargs.get("dim", -1 if name == "topk" else None)
        if dim is None:
            values, dim = values.flatten(), 0
        if picked.dim() < values.dim():
            picked, best = picked.unsqueeze(dim), best.unsqueeze(dim)
        there = values.gather(dim, best).double().sum(dim)
        worse = (there - values.gather(dim, picked).double().sum(dim)).abs()
        apart = (there - values.double().mean(dim) * best.shape[dim]).abs()
        known = worse.isfinite() & apart.isfinite()
        self._add(name, torch.stack([one.where(known, 0.0).sum() for one in (worse, apart)]))

    def _add(self, name: str, sums: torch.Tensor) -> None:
        place = f"{name} at {location(*running_line())}"
        self._found[place] = self._found[place] + sums if place in self._found else sums

    def missed(self) -> dict[str, int]:
        """Return what is not audited."""
        found = {place: sums.tolist() for place, sums in self._found.items()}
        return {
            f"{place} {WORSE}": 1 for place, (worse, apart) in found.items() if worse > HARM_ERROR * apart
        }
