"""Elements that a step picks, by an argmin or a topk: the script's pick decides for FP32 too, so it is judged here.

A pick among nearly equal elements is as good as another. So what counts is how much worse the script's pick is by
FP32's own numbers, beside how far FP32's pick is from the average element. Numbers that are turned into integers pick
too: where they are whole in FP32, as ids and positions are, what half precision makes of such a number is a wrong one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ampcheck.observe.reference.given import TakenAsIs
from ampcheck.observe.source import running_line
from ampcheck.values.formats import FP16
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.trace import Integers, Site

#: Operations that decide element by element.
COMPARES = frozenset("lt gt le ge eq ne".split())
#: Operations that look up where numbers belong in a table, as draws do by a cumulative sum.
SEARCHES = frozenset({"searchsorted", "bucketize"})
#: Operations that pick along a dimension, or element by element.
PICKS = frozenset({"argmin", "argmax", "topk", "min", "max", "_to_copy"}) | COMPARES | SEARCHES
#: What turns numbers into integers: indices, mostly.
CONVERTS = "_to_copy"
_CONVERSION = "a conversion to integers"
_INTEGERS, _BOOLS = frozenset({torch.int64, torch.int32}), frozenset({torch.bool})
#: What is not audited where picks are worse, behind the operation and its line.
WORSE = "picks otherwise than FP32 would: the gradients are compared at the script's picks"
#: How much worse picks must be, as a part of how far FP32's are from the average, before it is looked what they change.
_DIFFERS = 2.0**-10
#: What float16 rounds to zero lies below.
_SMALLEST = FP16.smallest_subnormal
#: An operation, a file and a line.
Place = tuple[str, str, int]


class Picks:
    """Compares what a step picks with what FP32 picks."""

    def __init__(self) -> None:
        #: By operation and line: how much worse, beside what; of conversions also how many numbers are not whole in
        #: FP32, and how many are the wrong ones that half precision makes of those that are.
        self._found: dict[Place, torch.Tensor] = {}
        self._branches: dict[
            Place, torch.Tensor
        ] = {}  #: comparisons of two numbers: whether one came out otherwise
        self._best: tuple[torch.Tensor, torch.Tensor, int] | None = (
            None  #: the last pick: values, FP32's pick, dimension
        )

    def note(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Any,
        wide: Any,
        *,
        low: torch.Tensor | None = None,
    ) -> None:
        """Take note of a pick among what is `low` in half precision; `args` are FP32's, as is the result `wide`."""
        self._best = None
        picked, best = (one if isinstance(one, torch.Tensor) else one[1] for one in (out, wide))
        values = args[0]
        kinds = _BOOLS if name in COMPARES else _INTEGERS
        if picked.dtype not in kinds or not values.is_floating_point() or not torch.is_grad_enabled():
            return
        if name in COMPARES and picked.numel() == 1:
            self._compares(name, picked != best, low, values)
            return
        if name in COMPARES or name in SEARCHES:
            self._best = picked, best, -1
            other = picked != best
            nothing = torch.zeros_like(other.sum())
            self._add(name, torch.stack([other.sum(), nothing + other.numel(), nothing + 1, nothing]))
            return
        if name == CONVERTS:
            self._best = picked, best, -1
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
        self._best = values, best, dim % values.dim()
        there = values.gather(dim, best).double().sum(dim)
        worse = (there - values.gather(dim, picked).double().sum(dim)).abs()
        apart = (there - values.double().mean(dim) * best.shape[dim]).abs()
        known = worse.isfinite() & apart.isfinite()
        sums = [one.where(known, 0.0).sum() for one in (worse, apart)]
        self._add(name, torch.stack([*sums, torch.zeros_like(sums[0]), torch.zeros_like(sums[0])]))

    def _compares(
        self, name: str, other: torch.Tensor, low: torch.Tensor | None, values: torch.Tensor
    ) -> None:
        """Take note of a comparison of one number, which may come out otherwise."""
        place, other = (name, *running_line()), other.reshape(())
        gone = torch.zeros_like(other) if low is None else low.reshape(()) == 0
        gone = gone & ((values != 0) & (values.abs() < _SMALLEST)).all()
        both = torch.stack([other, other & gone])
        self._branches[place] = self._branches[place] | both if place in self._branches else both

    def worse_by(self, other: Any) -> torch.Tensor | None:
        """Return by how much other picks of the last operation are worse than FP32's; None where it picked nothing."""
        picked = other if isinstance(other, torch.Tensor) else other[1]
        if self._best is None:
            return None
        values, best, dim = self._best
        if dim < 0:
            return (picked != best).sum()
        picked = picked if picked.dim() == best.dim() else picked.unsqueeze(dim)
        apart = values.gather(dim, best).double().sum(dim) - values.gather(dim, picked).double().sum(dim)
        return apart.abs().where(apart.isfinite(), 0.0).sum()

    def _add(self, name: str, sums: torch.Tensor) -> None:
        place = name, *running_line()
        self._found[place] = self._found[place] + sums if place in self._found else sums

    def branches(self) -> list[TakenAsIs]:
        """Return the comparisons of two numbers that come out otherwise than in FP32: the script may go another way."""
        return [TakenAsIs(*place) for place, (other, _) in self._branches.items() if bool(other)]

    def by_zero(self) -> tuple[TakenAsIs, ...]:
        """Return those of a number that is zero in float16, which is too small for it."""
        return tuple(TakenAsIs(*place) for place, (_, gone) in self._branches.items() if bool(gone))

    def fetch(
        self, made: Mapping[tuple[str, int], Site | None]
    ) -> tuple[tuple[TakenAsIs, ...], tuple[Integers, ...]]:
        """Return where picks are worse than FP32's, and which integers are wrong: where they were `made`, if known."""
        worse_picks, wrong = list[TakenAsIs](), list[Integers]()
        for (name, file, line), sums in self._found.items():
            worse, beside, broken, rounded = sums.tolist()
            # What reads other rows takes their gradients from some and gives them to others: two errors in one.
            if not broken and 2 * rounded > HARM_ERROR**2 * beside:
                site = made.get((file, line))
                place = (site.file, site.line) if site is not None and site.line else (file, line)
                wrong.append(Integers(*place, int(beside), int(rounded)))
            elif worse > (HARM_ERROR if name == CONVERTS else _DIFFERS) * beside:
                what = _CONVERSION if name == CONVERTS else name
                worse_picks.append(TakenAsIs(what, file, line, worse, worse / beside if beside else 0.0))
        return tuple(worse_picks), tuple(wrong)


class RoundedPicks(Picks):
    """Compares what FP32 with rounded weights picks with what FP32 picks, which has just been noted."""

    def __init__(self, first: Callable[[], Picks | None]) -> None:
        super().__init__()
        self._first = first

    def note(self, name: str, *rest: Any, low: torch.Tensor | None = None) -> None:  # noqa: ARG002
        """Take note of a pick; the last of the `rest` is this run's."""
        first = self._first()
        worse = None if first is None else first.worse_by(rest[-1])
        if worse is not None:
            self._add(_CONVERSION if name == CONVERTS else name, worse)

    def worse(self) -> dict[Place, float]:
        """Return by place how much worse these picks are."""
        return {place: float(worse) for place, worse in self._found.items()}
