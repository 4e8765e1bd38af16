"""What a script's losses are multiplied by as it goes on: each of several losses may have a scale of its own."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import isfinite, log2
from typing import Any

import torch

from ampcheck.observe import modes
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.script.optimizers import parameters_of
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE, leaves
from ampcheck.observe.script.scaling.scaled_by_hand import (
    CLEARED,
    CLOSE,
    Probe,
    Scaling,
    all_sizes,
    divided_by,
    no_division,
    not_finite,
    overflowed,
    probes,
    scaling_of,
)
from ampcheck.observe.unusual import in_memory, plain
from ampcheck.values.loop import NOT_FINITE, RESCALED, SPOILT, ScaleEvent

#: What a scale that is applied by hand is called where a scaler's label stands.
BY_HAND = "scale by hand"
#: Part of the backwards that may be without a step: those of a step that is left out now and then.
_RARE = 1 / 20
#: Falls of a scale at which weights and gradients are looked at: some scripts lower it at every step.
_MOST_FALLS = 32
#: How often finite gradients are cleared before they are stepped until only one clearing in so many is looked at.
_MOST_SENT, _SELDOM = 32, 16
#: Times that what multiplies losses falls after it rose, or rises again, if it is a loss scale; and how many it takes.
_TURNS, _SEVERAL = 3, 4


#: The weight that a loss reads first; and the last as well where that tells heads on one trunk apart.
_Ends = tuple[int, ...]


class _Loss:
    """What one of a script's losses is multiplied by, step by step."""

    def __init__(self) -> None:
        #: What the loss was multiplied by from a step on, and whether the gradients before were dropped: by the step
        #: that was skipped if it fell, which is that of the backward before.
        self.changes: list[tuple[int, float, bool]] = []
        self._before = 0  #: the step of the last backward

    def falls(self, step: int, by: float, *, dropped: bool) -> bool:
        """Take note of what it is multiplied by in a step, and tell whether that is less than before."""
        last = self.changes[-1][1] if self.changes else 0.0
        if by != last or dropped:
            self.changes.append((step if dropped else self._before, by, dropped))
        self._before = step
        return by < last

    @property
    def is_dynamic(self) -> bool:
        """Tell whether it is a loss scale by how it changes: by powers of two, up and down among several numbers."""
        scales = [scale for _, scale, _ in self.changes]
        ratios = [log2(after / before) for before, after in pairwise(scales) if after != before]
        turns = sum(a * b < 0 for a, b in pairwise(ratios))
        several = len(set(scales)) >= _SEVERAL and turns >= _TURNS
        return several and all(ratio.is_integer() for ratio in ratios)

    def events(self, label: str) -> list[ScaleEvent]:
        """Return its changes; it falls where a step was skipped before, or stays where one was dropped."""
        return [
            ScaleEvent(step, label, before, after, skipped=dropped or after < before)
            for (_, before, _), (step, after, dropped) in pairwise(self.changes)
        ]


class ScaleByHand:
    """The constants that a script's losses are multiplied by: each of several losses may have a scale of its own."""

    def __init__(self, not_seen: dict[str, int] | None = None) -> None:
        """Begin with none; what is `not_seen` is counted there."""
        self._not_seen = {} if not_seen is None else not_seen
        self._count = self._gone = 0  #: of losses that were multiplied, and of those without a step
        self.returns = False  #: the backward that begins gives gradients back, and adds none up
        self._losses: dict[_Ends, _Loss] = {}
        self._weights: set[float] = set()  #: numbers that losses are multiplied by, and that are no scales
        #: Those behind the loss that was multiplied by something else last, by what they are.
        self._behind: dict[int, torch.Tensor] = {}
        self._now: _Loss | None = None
        self._head: _Ends = ()  #: the first and the last weight of the loss before
        self._last, self._step = 0.0, -1
        self._falls = self._sent = self._cleared = 0
        self._multiplies = self._dropped = False
        self.spoilt: Sequence[torch.Tensor] = ()  #: weights that are not finite any more
        #: What the loss was multiplied by, and gradients that were clipped before that was undone.
        self._clipped: tuple[float, list[Probe]] | None = None
        self.minded = False  #: they were clipped to a limit that is multiplied as well
        self.clipping = 0.0  #: what the gradients being clipped are still multiplied by, 0 for nothing known
        self.limit = ""  #: whether what they are clipped to is multiplied by the scale
        self.undivided = (
            Scaling()
        )  #: what is not known of gradients that were clipped so, and were seen at their step

    def clips(self, by: float, before: Sequence[Probe]) -> float:
        """Return what gradients about to be clipped are multiplied by, 0 if by nothing, or nothing known.

        The backward left them as they were `before`, of a loss multiplied `by` a constant.
        """
        undivided = before and not overflowed(before) and abs(divided_by(before) - 1.0) < CLOSE
        self.clipping = by if undivided and by >= SMALLEST_SCALE else 0.0
        return self.clipping

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
        if clipped is None:
            return False
        found = scaling_of(*clipped, stepped)
        if self.minded and not found.known:
            self.undivided = no_division(clipped[0])
        return found.known

    @modes.unseen
    def multiplied(
        self,
        step: int,
        by: float,
        loss: Any,
        models: Callable[[], Iterable[tuple[str, torch.nn.Module]]],
    ) -> str:
        """Take note of what a loss is multiplied by; where that has changed, return what is left of before."""
        last, self._last = self._last, by
        dropped, self._multiplies, self._dropped = self._dropped, True, False
        goes_on, self._step = step == self._step and not dropped, step
        if not self.returns:
            self._lets_go(again=goes_on and by == last)
        if by != last or self._now is None:
            found = leaves(loss)
            self._behind = {id(leaf): leaf for leaf in found}
            if goes_on and by != last:
                self._tell_apart(found)
            self._now, self._head = self._losses.setdefault(self._ends(found), _Loss()), _both_ends(found)
        falls = self._now.falls(step, by, dropped=dropped) and self._falls < _MOST_FALLS
        self._falls += falls
        if not (falls or (goes_on and by != last)):
            return ""
        held = [one for _, model in models() for one in model.parameters() if one.requires_grad]
        held = [
            one for one in held if id(one) in self._behind
        ] or held  # others wait for a backward of their own
        if falls and (bad := [one for one in held if not _finite(one)]):
            self.spoilt = bad
            return SPOILT
        if falls and not_finite(held):
            return NOT_FINITE
        return RESCALED if goes_on and any(size for _, size in all_sizes(held)) else ""

    @modes.unseen
    def has_spoilt(self) -> bool:
        """Tell whether weights that a loss with a changing scale has reached are not finite any more."""
        changed = any(len({by for _, by, _ in loss.changes}) > 1 for loss in self._losses.values())
        if not changed or self.spoilt:
            return False
        self.spoilt = [one for one in self._behind.values() if not _finite(one)]
        return bool(self.spoilt)

    def _tell_apart(self, weights: Sequence[torch.Tensor]) -> None:
        """Tell heads on one trunk apart: one has another scale in the same step as the one before."""
        before, now = self._head, _both_ends(weights)
        if before != now and before[:1] == now[:1] and before[:1] in self._losses:
            self._losses[before] = self._losses.pop(before[:1])

    def _ends(self, weights: Sequence[torch.Tensor]) -> _Ends:
        """Return what tells a loss from the others."""
        both = _both_ends(weights)
        several = any(len(ends) > 1 and ends[:1] == both[:1] for ends in self._losses)
        return both if several else both[:1]

    def _lets_go(self, *, again: bool) -> None:
        """Count the backwards after which a script has let go of the gradients, and taken no step.

        The next one has come, with the same scale `again`.
        """
        self._count += 1
        behind = self._behind.values()
        self._gone += again and bool(behind) and all(gradient_of(one) is None for one in behind)
        self._not_seen.pop(CLEARED, None)
        if self._gone > _RARE * self._count:
            self._not_seen[CLEARED] = self._gone

    def has_fallen_to(self, by: float, loss: Any) -> bool:
        """Tell whether a number too small for a scale is what is left of a loss's own, halved again and again."""
        if by == self._last and self._multiplies:
            return True
        if not self._losses or not by or by in self._weights or self.spoilt:
            return False
        known = self._losses.get(self._ends(leaves(loss)))
        before = known.changes[-1][1] if known is not None and known.changes else 0.0
        fell = before > by and log2(before / by).is_integer()
        if not fell:
            self._weights.add(by)
        return fell

    @modes.unseen
    def clears(self, owner: Any, *, unused: bool) -> None:
        """Take note of gradients that are cleared, unused where no optimizer was given them.

        Those that are finite have been sent elsewhere, or are dropped for another reason than the scale.
        """
        if isinstance(owner, torch.nn.Module) and self._behind.keys().isdisjoint(map(id, owner.parameters())):
            return  # a copy of the model
        self._dropped = unused and self._multiplies and not self._are_sent(owner)
        self._multiplies, self._step = False, -1

    def _are_sent(self, owner: Any) -> bool:
        """Tell whether gradients about to be cleared are finite; once many were, only some are looked at."""
        self._cleared += 1
        if self._sent >= _MOST_SENT and self._cleared % _SELDOM:
            return True
        held = owner.parameters() if isinstance(owner, torch.nn.Module) else parameters_of(owner)
        sizes = [size for _, size in all_sizes([*self._behind.values(), *held])]
        sent = any(sizes) and all(map(isfinite, sizes))
        self._sent += sent
        return sent

    @property
    def is_dynamic(self) -> bool:
        """Tell whether one of them is a loss scale by how it changes."""
        return any(loss.is_dynamic for loss in self._losses.values())

    def first(self) -> dict[str, float]:
        """Return the first scale of each loss, under the name that stands for it."""
        return {label: loss.changes[0][1] for label, loss in self._named()}

    def events(self) -> tuple[ScaleEvent, ...]:
        """Return the changes of all."""
        found = [event for label, loss in self._named() for event in loss.events(label)]
        return tuple(sorted(found, key=lambda event: event.step))

    def _named(self) -> Iterator[tuple[str, _Loss]]:
        for at, loss in enumerate(self._losses.values()):
            yield f"{BY_HAND} {at + 1}" if at else BY_HAND, loss


def _both_ends(weights: Sequence[torch.Tensor]) -> _Ends:
    return tuple(map(id, (*weights[:1], *weights[-1:])))


def _finite(weight: torch.Tensor) -> bool:
    """Tell whether a weight holds no inf and no NaN; of one that is spread over ranks, this rank's part."""
    part = plain(weight)
    return part is None or not in_memory(part) or bool(part.detach().isfinite().all())
