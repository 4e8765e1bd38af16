"""Small weights in half precision that many steps should move in one direction, and that stand still.

A weight grows and its learning rate does not: then a step that was kept at first is rounded away later. One step does
not tell whether that matters, as the steps of a weight that has learned everything are small too, and cancel out. So
FP32's steps are added up for some time, again and again for as long as the script has run. Where a weight stands still
a little way from where it should be, its gradient keeps its sign, too, and is small: then nothing is judged. Nor is it
where the script changes the weight between steps, as a limit does that is met.
"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.half_judged import FEW_NUMBERS, KEPT_AT_LEAST, UNITS
from ampcheck.observe.script.state.naming import Named
from ampcheck.observe.statistics.memory import version_of
from ampcheck.observe.statistics.units import unit_of
from ampcheck.observe.unusual import plain
from ampcheck.values.trace import UpdateLoss

#: The first step of an optimizer from which on steps are added up, and the weights of one that are followed.
_FROM, _MOST = 16, 32
#: Numbers of a small weight where an optimizer has no more weights in half precision than these: they are exceptions.
_SMALL, _EXCEPTIONS = 256, 4
#: Of all that steps change, what is left where they go in one direction.
_ONE_WAY = 0.5
#: Of the largest gradient of the first steps, what is left where a weight is still far from where it goes.
_FAR = 0.1
#: The mantissa of a power of two.
_POWER = 0.5
Chosen = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass(slots=True)
class _Drift:
    """What FP32's steps would have changed of a weight together, and in all."""

    weight: weakref.ref[torch.Tensor]
    first: torch.Tensor
    sum: torch.Tensor
    whole: torch.Tensor
    gradient: torch.Tensor
    steps: int = 0
    left: tuple[int, int] = (
        -1,
        0,
    )  #: how often the weight had been written after its last step, and where it was
    kept: torch.Tensor | None = None  #: the weight after its last step
    writes: bool = False  #: whether the script writes it between two steps
    changed: torch.Tensor | bool = False  #: whether that has changed it

    def fits(self, weight: torch.Tensor, now: torch.Tensor) -> bool:
        """Tell whether it is of a weight that is still what it was."""
        same = self.weight() is weight and _alike(now, self.first)
        if same and self.kept is not None and self.left != _state(weight, now):
            self.writes, self.changed = True, (now != self.kept).any() | self.changed
        return same

    def may_be_limited(self, now: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Tell of each number whether a limit that the script writes may keep it where it is.

        A limit changes what has gone beyond it: then nothing is known. A number may also stand at a limit and never
        go beyond: where it began there, and at a power of two, beyond which half precision tells less apart.
        """
        if not self.writes or bool(self.changed):
            return torch.full_like(now, self.writes, dtype=torch.bool)
        return (now == start) | (now == 0) | (now.float().frexp().mantissa.abs() == _POWER)


class Drifts:
    """Adds up the steps of small weights."""

    def __init__(self, named: Named) -> None:
        """Begin with none; `named` says what a parameter is called."""
        self._named = named
        self._steps: dict[str, int] = {}  #: by optimizer
        self.adds_up: dict[str, dict[int, _Drift]] = {}  #: by optimizer, and identity of the weight
        self._places: dict[str, tuple[str, int]] = {}  #: by optimizer, the line that steps it
        self._losses: dict[str, UpdateLoss] = {}  #: by weight
        self._first = WeakIdKeyDictionary()  #: by weight: where it began, and its largest gradient at first
        self._still: dict[str, None] = {}  #: weights of which it is not judged whether they should move on

    @property
    def losses(self) -> tuple[UpdateLoss, ...]:
        """Return what was lost, by weight."""
        self._judge_all()
        return tuple(self._losses.values())

    @property
    def still(self) -> list[str]:
        """Return the weights that stand still, and maybe should."""
        self._judge_all()
        return [name for name in self._still if name not in self._losses]

    def wants(self, label: str, low: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the weights whose next step is to be added up: half of the time, for ever longer."""
        held = list(low)
        most = _SMALL if len(held) <= _EXCEPTIONS else FEW_NUMBERS
        small = [one for one in held if one.numel() <= most][:_MOST]
        if not small:
            return small
        step = self._steps[label] = self._steps.get(label, 0) + 1
        begun = 1 << step.bit_length() - 1
        if step == begun + begun // 2:
            self._judge(label)
        if step < _FROM:
            self._remember(small)
        return small if begun <= step < begun + begun // 2 and step >= _FROM else []

    def _remember(self, weights: Iterable[torch.Tensor]) -> None:
        """Keep how large the gradients of first steps are, and where they begin."""
        for weight in weights:
            part, grad = plain(weight), plain(weight.grad)
            if part is not None and grad is not None and grad.layout is torch.strided:
                with unseen():
                    size, known = grad.detach().float().abs().amax(), self._first.get(weight)
                    start, most = known or (part.detach().clone(), size)
                    self._first[weight] = start, torch.maximum(size, most.to(size.device))

    def add(
        self, label: str, chosen: Chosen, after: dict[int, torch.Tensor], place: Callable[[], tuple[str, int]]
    ) -> None:
        """Add a step to those before; `place` says where it is taken."""
        held = self.adds_up.setdefault(label, {})
        if label not in self._places:
            self._places[label] = place()
        for parameter, part, grad in chosen:
            now = part.detach()
            drift = held.get(id(parameter))
            if drift is None or not drift.fits(parameter, now):
                zero, ref = torch.zeros_like(now, dtype=torch.float32), weakref.ref(parameter)
                drift = held[id(parameter)] = _Drift(ref, now.clone(), zero, zero.clone(), zero.clone())
            change = after[id(parameter)] - now.float()
            drift.sum += change
            drift.whole += change.abs()
            drift.gradient += grad.detach().float()
            drift.steps += 1

    def ends(self, label: str) -> None:
        """Take note of the end of a step."""
        for drift in self.adds_up.get(label, {}).values():
            weight = drift.weight()
            now = None if weight is None else plain(weight)
            if weight is not None and now is not None and _alike(now, drift.first):
                with unseen():
                    drift.left, drift.kept = _state(weight, now), now.detach().clone()

    def _judge_all(self) -> None:
        with unseen():
            for label in list(self.adds_up):
                self._judge(label)

    def _judge(self, label: str) -> None:
        """Compare what the steps have changed with what they should have."""
        for drift in self.adds_up.pop(label, {}).values():
            weight = drift.weight()
            now: Any = None if weight is None else plain(weight)
            if weight is None or now is None or not drift.fits(weight, now):
                continue
            need = torch.maximum(UNITS * unit_of(drift.first), _ONE_WAY * drift.whole)
            moves = drift.sum.abs() >= need
            went = (now.detach().float() - drift.first.float()) * drift.sum.sign()
            stands = moves & (went < KEPT_AT_LEAST * drift.sum.abs())
            start, first = self._first.get(weight, (drift.first, float("inf")))
            far = drift.gradient.abs() / drift.steps >= _FAR * first
            far &= ~drift.may_be_limited(now.detach(), start if _alike(start, now) else now.detach())
            moved, stands_still, lost = (int(one.sum()) for one in (moves, stands, stands & far))
            name = self._named(weight)[1]
            if 2 * lost > now.numel():
                self._losses[name] = UpdateLoss(name, moved, lost, 0, *self._places[label], stepped=True)
            elif 2 * stands_still > now.numel():
                self._still[name] = None


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors can be compared."""
    return one.shape == other.shape and one.device == other.device


def _state(weight: torch.Tensor, now: torch.Tensor) -> tuple[int, int]:
    return version_of(weight), now.data_ptr()
