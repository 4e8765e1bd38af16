"""Loss scales that no GradScaler of torch's applies: known by what they do to a loss and to its gradients.

A script may multiply the loss by hand, or let a framework do it, and divide the gradients before the step. The
product is read from the loss's graph; the division shows where gradients are smaller at the step than they were
after the backward. Where only one of the two is seen, the scaling is unknown, and that is said. A limit that gradients
are clipped to may be multiplied as they are.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import frexp, isfinite, log2
from statistics import median
from typing import Any

import torch

from ampcheck.observe import modes
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE
from ampcheck.observe.unusual import plain
from ampcheck.values.loop import IN_SCALE, NOT_FINITE, PERHAPS, RESCALED, SPOILT, ScaleEvent
from ampcheck.values.wording import scale_words

#: What a scale that is applied by hand is called where a scaler's label stands.
BY_HAND = "scale by hand"
#: How far a measured division may be off, relatively, and still be the one by the scale.
CLOSE = 1e-3
#: Gradients that are measured in order to see a division.
_PROBES = 4
#: Falls of a scale at which weights and gradients are looked at: some scripts lower it at every step.
_MOST_FALLS = 32
#: Times that what multiplies losses falls after it rose, or rises again, if it is a loss scale; and how many it takes.
_TURNS, _SEVERAL = 3, 4
#: Limits that people choose for gradients that are not scaled.
_USUAL = (1e-3, 1e3)
#: The smallest part of the scale that a limit may be and still, perhaps, be multiplied by it.
_LEAST = 1.0 / 64.0

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


def worst(found: Iterable[Scaling]) -> Scaling:
    """Return what is not known of some steps' scales; where all are known, the largest."""
    return max(found, key=lambda one: (one.words, one.scale), default=Scaling())


def probes(parameters: Iterable[torch.Tensor], most: int = _PROBES) -> list[Probe]:
    """Return some parameters with the largest element of their gradients, read from no device yet."""
    found: list[Probe] = []
    for parameter in parameters:
        grad = plain(parameter.grad)
        if grad is not None and grad.layout is torch.strided and grad.is_floating_point() and grad.numel():
            found.append((parameter, grad.detach().abs().amax().double()))
        if len(found) == most:
            break
    return found


def all_sizes(parameters: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, float]]:
    """Return all parameters that have a gradient with the largest element of it."""
    return [(parameter, float(largest)) for parameter, largest in probes(parameters, most=sys.maxsize)]


def scaling_of(by: float, before: Sequence[Probe], stepped: Iterable[torch.Tensor]) -> Scaling:
    """Return what is known of a step's scale: the loss was multiplied `by` a constant, and these were stepped."""
    updated = list(stepped)
    own = {id(parameter) for parameter in updated}
    held = [one for one in before if one[0].grad is not None]
    copied = bool(own) and not any(id(parameter) in own for parameter, _ in held)
    pairs = _copies(held, updated) if copied else held
    divided = _divided(pairs)
    if by >= SMALLEST_SCALE:
        if (overflowed(before) and not copied) or abs(divided / by - 1.0) < CLOSE:
            return Scaling(by)
        if not own or copied or divided >= SMALLEST_SCALE:
            return Scaling(
                0.0, f"the loss is multiplied by {scale_words(by)}; what divides its gradients was not seen"
            )
    elif divided >= SMALLEST_SCALE and abs(frexp(divided)[0] - 0.5) < CLOSE:
        scale = scale_words(round(divided))
        return Scaling(
            0.0, f"gradients are divided by {scale} before the step; what multiplied them was not seen"
        )
    elif not pairs and any(parameter.dtype == torch.float16 for parameter, _ in held):
        return Scaling(
            0.0,
            "the optimizer steps copies of float16 weights; what their gradients are divided by was not seen",
        )
    return Scaling()


def _copies(held: Sequence[Probe], updated: Sequence[torch.Tensor]) -> list[Probe]:
    """Return the probes with the copies that are stepped in place of the parameters, as far as they are found."""
    found = []
    for parameter, amax in held:
        alike = (one for one in updated if one.shape == parameter.shape and one.device == parameter.device)
        copies = (one for one in alike if torch.equal(one.detach().to(parameter.dtype), parameter.detach()))
        found += [(copy, amax) for copy in (next(copies, None),) if copy is not None]
    return found


def overflowed(held: Sequence[Probe]) -> bool:
    """Tell whether no gradient of some is finite: no division shows in them."""
    return bool(held) and not any(isfinite(amax) for _, amax in held)


def _not_finite(parameters: Iterable[torch.Tensor]) -> bool:
    """Tell whether a gradient holds an inf or a NaN."""
    return not all(isfinite(amax) for _, amax in all_sizes(parameters))


def before_step(
    scaled: tuple[float, Sequence[Probe]], by_hand: float, stepped: Sequence[torch.Tensor]
) -> tuple[bool, str]:
    """Tell whether a script has divided gradients that a scaler has multiplied, and what to call their step.

    That is a loss's scale with its gradients after the backward, and a scale that was applied by hand. A division shows
    where gradients have become about so many times smaller, whatever was added to them or averaged.
    """
    scale, before = scaled
    own = {id(parameter) for parameter in stepped}
    divided = SMALLEST_SCALE <= scale <= 2.0 * _divided([one for one in before if id(one[0]) in own])
    bad = by_hand >= SMALLEST_SCALE and _not_finite(stepped)
    return divided, NOT_FINITE if bad else ""


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
        #: By step: what the loss was multiplied by from there on, and whether the gradients before were dropped.
        self._changes: list[tuple[int, float, bool]] = []
        self._falls, self._step = 0, -1
        self._multiplies = self._dropped = False
        #: What the loss was multiplied by, and gradients that were clipped before that was undone.
        self._clipped: tuple[float, list[Probe]] | None = None
        self.clipping = 0.0  #: what the gradients being clipped are still multiplied by, 0 for nothing known
        self.limit = ""  #: whether what they are clipped to is multiplied by the scale

    def clips(self, by: float, before: Sequence[Probe]) -> None:
        """Take note of gradients about to be clipped, as they were after the backward of a loss multiplied `by`."""
        undivided = before and not overflowed(before) and abs(_divided(before) - 1.0) < CLOSE
        self.clipping = by if undivided and by >= SMALLEST_SCALE else 0.0

    def clipped(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take note of gradients that have been clipped."""
        if self.clipping:
            self._clipped = self.clipping, probes(parameters)
            self.clipping = 0.0

    @property
    def clipped_some(self) -> bool:
        """Tell whether gradients were clipped that may be divided by the scale since."""
        return self._clipped is not None

    def divided(self, stepped: Iterable[torch.Tensor]) -> bool:
        """Tell whether gradients that are about to be stepped were divided by the scale after they were clipped."""
        clipped, self._clipped = self._clipped, None
        return clipped is not None and scaling_of(*clipped, stepped).known

    @modes.unseen
    def multiplied(
        self, step: int, by: float, models: Callable[[], Iterable[tuple[str, torch.nn.Module]]]
    ) -> str:
        """Take note of what a loss is multiplied by; where that has changed, return what is left of before."""
        last = self._changes[-1][1] if self._changes else 0.0
        dropped, self._multiplies, self._dropped = self._dropped, True, False
        goes_on, self._step = step == self._step and not dropped, step
        if by != last or dropped:
            self._changes.append((step, by, dropped))
        falls = by < last and self._falls < _MOST_FALLS
        self._falls += falls
        if not (falls or (goes_on and by != last)):
            return ""
        held = [one for _, model in models() for one in model.parameters() if one.requires_grad]
        if falls and any(not bool(one.detach().isfinite().all()) for one in held):
            return SPOILT
        if falls and _not_finite(held):
            return NOT_FINITE
        return RESCALED if goes_on and any(size for _, size in all_sizes(held)) else ""

    def clears(self, *, unused: bool) -> None:
        """Take note of gradients that are cleared, unused where no optimizer was given them."""
        self._dropped, self._multiplies, self._step = unused and self._multiplies, False, -1

    @property
    def is_dynamic(self) -> bool:
        """Tell whether it is a loss scale by how it changes: by powers of two, up and down among several numbers."""
        scales = [scale for _, scale, _ in self._changes]
        ratios = [log2(after / before) for before, after in pairwise(scales) if after != before]
        turns = sum(a * b < 0 for a, b in pairwise(ratios))
        several = len(set(scales)) >= _SEVERAL and turns >= _TURNS
        return several and all(ratio.is_integer() for ratio in ratios)

    def first(self) -> dict[str, float]:
        """Return the first scale, under the name that stands for it."""
        return {BY_HAND: self._changes[0][1]} if self._changes else {}

    def events(self) -> tuple[ScaleEvent, ...]:
        """Return its changes; it falls where a step was skipped before, or stays where one was dropped."""
        return tuple(
            ScaleEvent(max(0, step - 1), BY_HAND, before, after, skipped=dropped or after < before)
            for (_, before, _), (step, after, dropped) in pairwise(self._changes)
        )


@modes.unseen
def limit_of(args: tuple[Any, ...], kwargs: dict[str, Any], *, may_wait: bool) -> float:
    """Return the limit that a function of torch's is called with, 0 for none, or one that a GPU would be waited for."""
    names = ("max_norm", "clip_value")
    given = next((kwargs[name] for name in names if name in kwargs), args[0] if args else None)
    if isinstance(given, torch.Tensor):
        if given.numel() != 1 or not (given.is_cpu or may_wait):
            return 0.0
        return float(given.detach())
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
