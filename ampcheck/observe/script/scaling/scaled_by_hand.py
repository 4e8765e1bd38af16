"""Loss scales that no GradScaler of torch's applies: known by what they do to a loss and to its gradients.

A script may multiply the loss by hand, or let a framework do it, and divide the gradients before the step. The
product is read from the loss's graph; the division shows where gradients are smaller at the step than they were
after the backward. Where only one of the two is seen, the scaling is unknown, and that is said.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import frexp, isfinite
from statistics import median

import torch

from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE
from ampcheck.observe.unusual import plain
from ampcheck.values.loop import ScaleEvent

#: What a scale that is applied by hand is called where a scaler's label stands.
BY_HAND = "scale by hand"
#: How far a measured division may be off, relatively, and still be the one by the scale.
_CLOSE = 1e-3
#: Gradients that are measured in order to see a division.
_PROBES = 4

Probe = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Scaling:
    """What is known of the loss scale of a recorded step that no GradScaler scaled."""

    scale: float = 0.0  #: the scale that was applied by hand, and divided away again; 0 for none
    words: str = ""  #: why the scaling is not known; '' where it is

    @property
    def known(self) -> bool:
        """Tell whether a scale was applied and is known."""
        return bool(self.scale)


def probes(parameters: Iterable[torch.Tensor]) -> list[Probe]:
    """Return some parameters with the largest element of their gradients, read from no device yet."""
    found: list[Probe] = []
    for parameter in parameters:
        grad = plain(parameter.grad)
        if grad is not None and grad.layout is torch.strided and grad.is_floating_point() and grad.numel():
            found.append((parameter, grad.detach().abs().amax().double()))
        if len(found) == _PROBES:
            break
    return found


def scaling_of(by: float, before: Sequence[Probe], stepped: Iterable[torch.Tensor]) -> Scaling:
    """Return what is known of a step's scale: the loss was multiplied `by` a constant, and these were stepped."""
    own = {id(parameter) for parameter in stepped}
    held = [parameter for parameter, _ in before if parameter.grad is not None]
    divided = _divided(before)
    if by >= SMALLEST_SCALE:
        if abs(divided / by - 1.0) < _CLOSE:
            return Scaling(by)
        if not any(id(parameter) in own for parameter in held) or divided >= SMALLEST_SCALE:
            return Scaling(0.0, f"the loss is multiplied by {by:,g}; what divides its gradients was not seen")
    elif divided >= SMALLEST_SCALE and abs(frexp(divided)[0] - 0.5) < _CLOSE:
        return Scaling(
            0.0, f"gradients are divided by {divided:,.0f} before the step; what multiplied them was not seen"
        )
    return Scaling()


def are_divided(by: float, before: Sequence[Probe], stepped: Iterable[torch.Tensor]) -> bool:
    """Tell whether gradients have become about so many times smaller, whatever was added to them or averaged."""
    own = {id(parameter) for parameter in stepped}
    return SMALLEST_SCALE <= by <= 2.0 * _divided([one for one in before if id(one[0]) in own])


def _divided(before: Sequence[Probe]) -> float:
    """Return by how much gradients have become smaller."""
    held = [(parameter, amax) for parameter, amax in before if parameter.grad is not None]
    after = probes(parameter for parameter, _ in held)
    pairs = [(float(amax), float(now)) for (_, amax), (_, now) in zip(held, after, strict=False)]
    ratios = [was / now for was, now in pairs if was and now and isfinite(was) and isfinite(now)]
    return median(ratios) if ratios else 1.0


class ScaleByHand:
    """The constants that a script's losses are multiplied by, step by step."""

    def __init__(self) -> None:
        """Begin with none."""
        self._changes: list[tuple[int, float]] = []
        #: What the loss was multiplied by, and gradients that were clipped before that was undone.
        self._clipped: tuple[float, list[Probe]] | None = None
        self.clipping = 0.0  #: what the gradients being clipped are still multiplied by, 0 for nothing known

    def clips(self, by: float, before: Sequence[Probe]) -> None:
        """Take note of gradients about to be clipped, as they were after the backward of a loss multiplied `by`."""
        undivided = by >= SMALLEST_SCALE and before and abs(_divided(before) - 1.0) < _CLOSE
        self.clipping = by if undivided else 0.0

    def clipped(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take note of gradients that have been clipped."""
        if self.clipping:
            self._clipped = self.clipping, probes(parameters)
            self.clipping = 0.0

    def divided(self, stepped: Iterable[torch.Tensor]) -> bool:
        """Tell whether gradients that are about to be stepped were divided by the scale after they were clipped."""
        clipped, self._clipped = self._clipped, None
        return clipped is not None and scaling_of(*clipped, stepped).known

    def multiplied(self, step: int, by: float) -> None:
        """Take note of what a loss was multiplied by."""
        if by >= SMALLEST_SCALE and (not self._changes or self._changes[-1][1] != by):
            self._changes.append((step, by))

    def first(self) -> dict[str, float]:
        """Return the first scale, under the name that stands for it."""
        return {BY_HAND: self._changes[0][1]} if self._changes else {}

    def events(self) -> tuple[ScaleEvent, ...]:
        """Return its changes; it falls where a step was skipped before."""
        pairs = zip(self._changes, self._changes[1:], strict=False)
        return tuple(
            ScaleEvent(max(0, step - 1), BY_HAND, before, after, skipped=after < before)
            for (_, before), (step, after) in pairs
        )
