"""Elements that a step picks, by an argmin or a topk: the script's pick decides for FP32 too, so it is judged here.

A pick among nearly equal elements is as good as another. So what counts is how much worse the script's pick is by
FP32's own numbers, beside how far FP32's pick is from the average element. Numbers that are turned into integers pick
too: where they are whole in FP32, as ids and positions are, what half precision makes of such a number is a wrong one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ampcheck.observe.source import running_line
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.trace import Integers
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
        #: By operation and line: how much worse, beside what; of conversions also how many numbers are not whole in
        #: FP32, and how many are the wrong ones that half precision makes of those that are.
        self._found: dict[tuple[str, str, int], torch.Tensor] = {}

    def note(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, wide: Any) -> None:
        """Take note of a pick; `args` are FP32's, as is the result `wide`."""
        picked, best = (one if isinstance(one, torch.Tensor) else one[1] for one in (out, wide))
        values = args[0]
        if picked.dtype not in _INTEGERS or not values.is_floating_point() or not torch.is_grad_enabled():
            return
        if name == CONVERTS:
            other, broken = picked != best, values != values.round()
            rounded = other & ((best.half().long() == picked) | (best.bfloat16().long() == picked))
            sums = [one.sum() for one in (other, torch.ones_like(other), broken, rounded)]
            self._add(name, torch.stack(sums))
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
        sums = [one.where(known, 0.0).sum() for one in (worse, apart)]
        self._add(name, torch.stack([*sums, torch.zeros_like(sums[0]), torch.zeros_like(sums[0])]))

    def _add(self, name: str, sums: torch.Tensor) -> None:
        place = name, *running_line()
        self._found[place] = self._found[place] + sums if place in self._found else sums

    def fetch(self) -> tuple[dict[str, int], tuple[Integers, ...]]:
        """Return what is not audited, and which integers are wrong."""
        missed, wrong = dict[str, int](), list[Integers]()
        for (name, file, line), sums in self._found.items():
            worse, beside, broken, rounded = sums.tolist()
            # What reads other rows takes their gradients from some and gives them to others: two errors in one.
            if not broken and 2 * rounded > HARM_ERROR**2 * beside:
                wrong.append(Integers(file, line, int(beside), int(rounded)))
            elif worse > HARM_ERROR * beside:
                what = "a conversion to integers" if name == CONVERTS else name
                missed[f"{what} at {location(file, line)} {WORSE}"] = 1
        return missed, tuple(wrong)
