"""Half precision in a script's own optimizers: states that are zero, and weights that become infinite.

Optimizers of torch's keep their states as wide as their weights. One of the script's own may keep a second moment in
fp16, where small squares are zero: the update divides by eps alone, and the weights are far away before any recorded
step shows why. Or a first moment whose sign moves the weights: where it is zero they stand still. So its first steps
are taken in FP32 as well, operation by operation. Whether its small updates of half-precision weights are lost shows
over many steps: it may gather what is rounded away, or round at random.
"""

import functools
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import Args, Kwargs, run_op
from ampcheck.observe.model.updates import TOO_FAR
from ampcheck.observe.reference.beside_mode import BesideMode
from ampcheck.observe.reference.effects import Effects, written
from ampcheck.observe.reference.shadow import Follow, Shadow
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.naming import Named
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable, tensors_of
from ampcheck.observe.unusual import plain
from ampcheck.values.trace import UpdateLoss

#: Steps of each optimizer that are taken in FP32 as well.
_STEPS = 2
#: Elements of its parameters that are compared.
_MOST = 2**24
#: Of how far a step in FP32 moves numbers on average, from which on those of a parameter move as others do.
_AS_OTHERS = 0.25
#: Error of what a step changes, in steps of FP32, from which on its states are looked at.
_FAR = 3.0


class _References(Shadow):
    """The references of one step; remembers where half-precision tensors are written."""

    def __init__(self) -> None:
        super().__init__(run_op)
        self.places: dict[int, tuple[str, int]] = {}
        #: Results in half precision that are not finite and are in FP32, in order: whether, and where.
        self.spoilt: list[tuple[torch.Tensor, tuple[str, int]]] = []

    def _follow(self, rule: Effects, func: Any, args: Args, kwargs: Kwargs) -> Follow | None:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_of(args)):
            raise RuntimeError("a step that computes its loss again")
        for tensor in tensors_of(written(rule, args, kwargs)):
            if tensor.dtype in HALVES and readable(tensor):
                self.places[tensor.untyped_storage()._cdata] = running_line()
        follow = super()._follow(rule, func, args, kwargs)
        return None if follow is None else functools.partial(self._look, follow, running_line())

    def _look(self, follow: Follow, line: tuple[str, int], out: Any) -> None:
        follow(out)
        if isinstance(out, torch.Tensor) and out.dtype in HALVES and (wide := self.of(out)) is not None:
            self.spoilt.append(((~out.detach().isfinite() & wide.isfinite()).any(), line))

    def spoilt_at(self) -> tuple[str, int]:
        """Return the first line that makes infinite what FP32 holds; ("", 0) for none."""
        return next((line for bad, line in self.spoilt if bool(bad)), ("", 0))


class OwnUpdates:
    """Takes the first steps of optimizers that torch does not have in FP32 as well."""

    def __init__(self, named: Named) -> None:
        """Begin with none; `named` says what a parameter is called."""
        self._named = named
        self._taken: dict[str, int] = {}
        self._optimizer: Any = None
        self._shadow: _References | None = None
        self.follows = False  #: the step that is running
        #: What the optimizer keeps of parameters in FP32, as it was.
        self._kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._mode: BesideMode | None = None
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  #: by parameter, its numbers then
        self._low: list[tuple[torch.Tensor, torch.Tensor]] = []  #: parameters in half precision
        self.losses: tuple[UpdateLoss, ...] = ()

    def begins(self, label: str, optimizer: Any, parameters: Iterable[Any]) -> None:
        """Follow an optimizer's step, if it is one of its first."""
        self.leave()
        taken = self._taken[label] = self._taken.get(label, 0) + 1
        if taken > _STEPS or self.losses:
            return
        elements, states = 0, taken == 1 or _low_states(optimizer)
        with unseen():
            for parameter in parameters:
                part = plain(parameter) if isinstance(parameter, torch.Tensor) else None
                if part is None or elements + part.numel() > _MOST:
                    continue
                elements += part.numel()
                if part.dtype in HALVES:
                    self._low.append((parameter, part))
                elif part.dtype is torch.float32 and states:
                    self._before[id(parameter)] = part, part.detach().clone()
            if self._low:
                self._kept = [*_kept_of(optimizer, [one for one, _ in self._low])]
        if self._before or self._low:
            self._optimizer, self._shadow, self.follows = optimizer, _References(), True
            self._shadow.gave_way = lambda _: self.leave()
            self._mode = BesideMode(self._shadow)
            self._mode.__enter__()

    def leave(self) -> None:
        """Follow no further: the step asks for the loss again, or failed."""
        mode, self._mode, self._shadow, self.follows = self._mode, None, None, False
        self._before, self._low, self._kept, self._optimizer = {}, [], [], None
        if mode is not None:
            mode.__exit__()

    def ends(self) -> None:
        """Compare what the step has done with FP32's."""
        shadow, before, low, optimizer = self._shadow, self._before, self._low, self._optimizer
        kept = self._kept
        self.leave()
        if shadow is None:
            return
        with unseen():
            self.losses = tuple(self._infinite(shadow, low)) or tuple(self._dead(shadow, kept))
            if before and not self.losses and _low_states(optimizer):
                steps = {key: _both(shadow, *held) for key, held in before.items()}
                error, size = (
                    sum(map(float, one)) for one in zip(*map(_squares, steps.values()), strict=True)
                )
                far = _stuck(steps)
                if not error <= _FAR**2 * size:  # NaN is far off too
                    far = {key: ~(went.abs() <= TOO_FAR * way.abs()) for key, (way, went) in steps.items()}
                self.losses = tuple(_zeros(shadow, optimizer, far)) if far else ()
        shadow.clear()

    def _infinite(
        self, shadow: _References, low: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> Iterator[UpdateLoss]:
        """Yield the parameters of which elements are not finite that are in FP32."""
        for parameter, part in low:
            wide = shadow.of(part)
            if wide is None or wide.shape != part.shape:
                continue
            known = wide.isfinite()
            bad = int((known & ~part.isfinite()).sum())
            if bad:
                place = shadow.places.get(part.untyped_storage()._cdata, ("", 0))
                name = self._named(parameter)[1]
                yield UpdateLoss(name, int(known.sum()), 0, bad, *place, infinite=bad)

    def _dead(
        self, shadow: _References, kept: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    ) -> Iterator[UpdateLoss]:
        """Yield parameters whose FP32 numbers do not move at all, and do in FP32, after something became infinite."""
        place = shadow.spoilt_at()
        for parameter, part, first in kept if place[1] else ():
            way, _ = _both(shadow, part, first)
            moved = int((way != 0).sum())
            if 2 * moved > way.numel() and not bool((part != first).any()):
                yield UpdateLoss(self._named(parameter)[1], moved, moved, 0, *place, in_fp32=True)


def _kept_of(
    optimizer: Any, parameters: Iterable[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield parameters with what an optimizer keeps of them in FP32, as long as they are, and a copy of that."""
    for parameter in parameters:
        held = optimizer.state.get(parameter)
        for value in held.values() if isinstance(held, dict) else ():
            part = plain(value) if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else None
            if part is not None and part.shape == parameter.shape:
                yield parameter, part, part.detach().clone()


def _low_states(optimizer: Any) -> bool:
    """Tell whether an optimizer holds states in half precision; their numbers are not read for it."""
    states = (held for held in optimizer.state.values() if isinstance(held, dict))
    return any(
        isinstance(one, torch.Tensor) and one.dtype in HALVES for held in states for one in held.values()
    )


def _both(shadow: Shadow, part: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a step in FP32 changes in a parameter, and what this one did; zeros where FP32's is not known."""
    wide = shadow.of(part)
    way = torch.zeros_like(first) if wide is None else wide - first
    known = (way != 0) & way.isfinite()
    return way.where(known, 0.0), (part.detach() - first).where(known, 0.0)


def _squares(step: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the energies of a step's error and of the step in FP32."""
    way, went = step
    return (went - way).double().square().sum(), way.double().square().sum()


def _stuck(steps: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Return which numbers move in FP32 of parameters that do not move at all, if these would move as others do."""
    moved = {key: _moved(step) for key, step in steps.items()}
    energies, counts = (sum(one) for one in zip(*moved.values(), strict=True))
    usual = energies / counts if counts else inf
    stuck = {}
    for key, (way, went) in steps.items():
        energy, some = moved[key]
        if 2 * some > way.numel() and energy >= _AS_OTHERS**2 * usual * some and not bool((went != 0).any()):
            stuck[key] = way != 0
    return {
        key: stuck.get(key, torch.zeros_like(way, dtype=torch.bool))
        for key, (way, _) in steps.items()
        if stuck
    }


def _moved(step: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, int]:
    """Return the energy of a step in FP32, and how many numbers it moves."""
    return float(step[0].double().square().sum()), int((step[0] != 0).sum())


def _zeros(shadow: _References, optimizer: Any, far: dict[int, torch.Tensor]) -> Iterator[UpdateLoss]:
    """Yield the states, all of one name together, that are zero or not finite where FP32's is neither.

    They count where the parameter went too far, if they have a number for each of its.
    """
    counts: dict[str, list[int]] = {}
    places: dict[str, tuple[str, int]] = {}
    for parameter, held in optimizer.state.items():
        for key, value in held.items() if isinstance(held, dict) else ():
            part = plain(value) if isinstance(value, torch.Tensor) and value.dtype in HALVES else None
            wide = None if part is None else shadow.of(part)
            if part is None or wide is None:
                continue
            there, here = (wide != 0) & wide.isfinite(), far.get(id(parameter))
            there = there & here if here is not None and here.shape == there.shape else there
            found = [there, there & (part == 0), there & ~part.isfinite()]
            sums = [int(one.sum()) for one in found]
            counts[str(key)] = [a + b for a, b in zip(counts.get(str(key), [0, 0, 0]), sums, strict=True)]
            places.setdefault(str(key), shadow.places.get(part.untyped_storage()._cdata, ("", 0)))
    for key, (moved, stuck, wrong) in counts.items():
        if stuck + wrong:
            yield UpdateLoss(f"{type(optimizer).__name__}.state.{key}", moved, stuck, wrong, *places[key])
