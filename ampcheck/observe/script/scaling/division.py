"""Which gradients of a scaled loss a script has divided by the scale, and which it has not: of a recorded step.

A gradient's largest element is measured after each backward that adds to it, and again where the gradients are used.
Where some are smaller by the factor that multiplied the loss, and others as they were, the others still hold it.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import frexp, isfinite
from typing import Any

import torch

from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE
from ampcheck.observe.script.scaling.scaled_by_hand import CLOSE, all_sizes
from ampcheck.observe.statistics.memory import version_of


@dataclass(slots=True)
class _Grown:
    """A gradient that backwards of scaled losses have made, and no other loss, and no hook that may divide it."""

    parameter: Any  #: weak
    largest: float  #: element, after the last of these backwards
    by: float  #: what the loss was multiplied by


class Division:
    """Follows the gradients of a step from its backwards to what uses them."""

    def __init__(self) -> None:
        self._grown: dict[int, _Grown] = {}
        self._mixed: dict[int, _Grown] = {}  #: to which a loss that is not scaled has added
        self._step = -1
        self.begun = False  #: a backward whose gradients are looked at
        self.at = -1  #: backwards that there had been when the last of these ended
        self._by = 1.0
        self._before: list[tuple[torch.Tensor, torch.Tensor | None, int]] = []
        self._divided: set[int] = set()  #: parameters whose gradients were divided before this backward
        #: Those whose gradients are there as a loss at another scale has left them.
        self._others: set[int] = set()
        self._clipping: dict[int, float] = {}  #: how many times smaller gradients are that are being clipped

    def backward_begins(self, step: int, parameters: Iterable[Any], by: float) -> None:
        """Take note of the gradients that there are before the backward of a loss multiplied `by` a constant."""
        if step != self._step:
            self._grown, self._mixed, self._step = {}, {}, step
        held = {id(one): one for one in parameters if isinstance(one, torch.Tensor)}
        with unseen():
            ratios = self._ratios()
            self._by, self.begun = by, True
            self._before = [
                (one, grad, version_of(grad)) for one in held.values() for grad in (gradient_of(one),)
            ]
        kept = (key for key, ratio in ratios.items() if _close(ratio, 1.0))
        self._others = {key for key in kept if self._grown[key].by != by >= SMALLEST_SCALE}
        scaled = [key for key, ratio in ratios.items() if _is_scale(ratio, self._grown[key].by)]
        self._divided = set(scaled) if len(scaled) == len(ratios) else set()

    def backward_ends(self, backwards: int) -> tuple[list[Any], bool]:
        """Take note of what the backward has added to; return parameters whose gradients were divided before that.

        And whether there were gradients of a loss that was multiplied by something else.
        """
        before, self._before, self.begun = self._before, [], False
        self.at = backwards
        with unseen():
            changed = [
                one
                for one, grad, was in before
                if (now := gradient_of(one)) is not None and (now is not grad or version_of(now) != was)
            ]
            scaled = self._by >= SMALLEST_SCALE
            mixed = (
                {} if scaled or self._divided else {id(one): one for one in changed if id(one) in self._grown}
            )
            sizes = _sizes(changed if scaled else mixed.values())
        again = [one for one in changed if id(one) in self._divided and id(one) in sizes]
        rescaled = not self._others.isdisjoint(map(id, changed))
        for one in changed:
            before_it = self._grown.pop(id(one), None)
            if id(one) in sizes and not (one._backward_hooks or one._post_accumulate_grad_hooks):
                by = self._by if before_it is None or scaled else before_it.by
                (self._grown if scaled else self._mixed)[id(one)] = _Grown(
                    weakref.ref(one), sizes[id(one)], by
                )
        return again, rescaled

    def mixed(self, optimizer: Any) -> list[Any]:
        """Return what an optimizer is about to step and was divided by a scale that not all of its losses had."""
        mine = {id(one) for group in getattr(optimizer, "param_groups", ()) for one in group["params"]}
        held = {key: self._mixed.pop(key) for key in mine & self._mixed.keys()}
        with unseen():
            sizes = _sizes(one for grown in held.values() if (one := grown.parameter()) is not None)
        return [
            held[key].parameter()
            for key, now in sizes.items()
            if isfinite(now) and _is_scale(held[key].largest / now, held[key].by)
        ]

    def clips(self, parameters: Iterable[Any], backwards: int) -> list[Any]:
        """Return those of parameters about to be clipped together that are still multiplied, where others are not."""
        self._clipping = {}
        if self.at != backwards:
            return []
        keys = {id(one) for one in parameters}
        with unseen():
            ratios = self._ratios()
        self._clipping = {key: ratio for key, ratio in ratios.items() if key in keys}
        left = self._left(ratios)
        held = [self._grown[key].parameter() for key in left if key in keys]
        return held if len(held) < len(self._clipping) else []

    def clipped(self) -> None:
        """Take note of gradients that have been clipped: that is no division by the scale."""
        before, self._clipping = self._clipping, {}
        if not before:
            return
        with unseen():
            for key, ratio in self._ratios().items():
                if key in before and ratio:
                    self._grown[key].largest *= before[key] / ratio

    def steps(self, optimizer: Any) -> list[Any]:
        """Return what an optimizer is about to step and is still multiplied, where other gradients are not.

        Not what it steps at a rate that makes up for that. What is stepped is followed no longer.
        """
        groups = getattr(optimizer, "param_groups", ())
        keys = {id(one) for group in groups for one in group["params"]}
        if self._grown.keys().isdisjoint(keys):
            return []
        with unseen():
            left = self._left(self._ratios())
            rates = [float(group.get("lr", 1.0)) for group in groups]
        found = [
            one
            for group, rate in zip(groups, rates, strict=True)
            for one in group["params"]
            if id(one) in left and rate * self._grown[id(one)].by > max(rates)
        ]
        self._grown = {key: grown for key, grown in self._grown.items() if key not in keys}
        return found

    def _left(self, ratios: Mapping[int, float]) -> Sequence[int]:
        """Return the gradients that are as they were, or shortened like others that were divided besides."""
        for by in {self._grown[key].by for key in ratios}:
            own = {key: ratio for key, ratio in ratios.items() if self._grown[key].by == by}
            smallest = min(own.values())
            for least in (1.0, smallest):
                left = [key for key, ratio in own.items() if _close(ratio, least)]
                divided = [key for key, ratio in own.items() if _is_scale(ratio / least, by)]
                if left and divided and (least == 1.0 or len(left) + len(divided) == len(own)):
                    return left
        return []

    def _ratios(self) -> dict[int, float]:
        """Return how many times smaller gradients have become; nothing where one was not finite."""
        if not all(isfinite(one.largest) for one in self._grown.values()):
            return {}
        held = [one for grown in self._grown.values() if (one := grown.parameter()) is not None]
        sizes = _sizes(held)
        return {key: self._grown[key].largest / now for key, now in sizes.items() if now and isfinite(now)}


def _sizes(parameters: Iterable[torch.Tensor]) -> dict[int, float]:
    """Return the largest elements of gradients, by parameter, without those that are zero throughout."""
    return {id(one): largest for one, largest in all_sizes(parameters) if largest}


def _close(ratio: float, to: float) -> bool:
    return abs(ratio / to - 1.0) < CLOSE


def _is_scale(ratio: float, by: float) -> bool:
    """Tell whether gradients were divided by a loss scale: what is known of it, or a power of two beyond that.

    Of a loss that is divided by the number of micro batches, the product of both is known.
    """
    return _close(ratio, by) or (ratio > by and abs(frexp(ratio * (1.0 + CLOSE))[0] - 0.5) < CLOSE)
