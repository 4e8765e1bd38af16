"""Tensors in half precision that a script changes beside its training, followed in FP32 for some steps.

Averages of weights, counters, banks: each of their changes is small, and what half precision rounds away of one is
gone. Whether that matters shows when many add up. So the same changes are made once more to an FP32 copy, from the
copy's own numbers, for as long as it takes FP32 to come far enough. Nothing else is repeated: no product, nothing that
a gradient flows through, nothing of a backward or an optimizer.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.observe.execution import run_op
from ampcheck.observe.modes import OwnMode, Way, way
from ampcheck.observe.reference.effects import Effects, written
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.source import source_finder
from ampcheck.observe.statistics.memory import readable, tensors_of
from ampcheck.values.trace import UpdateLoss

_current_node = torch._C._current_autograd_node
#: A change counts from so many units in the last place on, and from this part of the number. An average with decay 0.9
#: may stand still 5 of them away from the truth, 10 where it is rounded twice: twice as many where each number counts.
UNITS, SHARE = 8, 2.0**-7
#: Of a change in FP32, what half precision may lose; and how many times as far it may go.
LOST, TOO_FAR = 0.75, 2.0
#: Of the elements that FP32 moves far enough, the part that may lose so much before updates count as lost.
MOST_LOST = 0.5
#: Of the elements that FP32 has moved far enough, the part that may lose so much where half precision keeps a state.
KEPT = 0.1
#: Tensors up to this size are judged number by number: each counts or measures something of its own.
FEW_NUMBERS = 16
_FIRST, _OFTEN = 4, 64  #: steps after which everything is judged for the first time, and again
#: Operations whose results are no state any more: what they cost, and what enters them, is the model's.
_PRODUCTS = frozenset("mm addmm bmm baddbmm mv dot convolution linear native_layer_norm embedding".split())


@dataclass(slots=True)
class State:
    """A tensor that is followed."""

    tensor: weakref.ref[torch.Tensor]
    name: str
    first: torch.Tensor  #: its numbers when that began
    version: int
    writes: int = 0  #: that were seen
    missed: bool = False  #: others were not, or nobody knows what they do
    done: bool = False
    fine: bool = False  #: what FP32 changes, half precision changes too
    fine_here: bool = False  #: as it was when that was looked at last, since it is followed
    place: tuple[str, int] = ("", 0)  #: of its first write
    losses: tuple[UpdateLoss, ...] = ()

    @property
    def judged(self) -> bool:
        """Tell whether it is known what half precision makes of its changes."""
        return self.fine or bool(self.losses)

    def outgrown(self) -> bool:
        """Tell whether its units have grown since: what was kept then may be too small now."""
        tensor = self.tensor()
        if tensor is None or self.losses or tensor.shape != self.first.shape:
            return False
        return bool((_unit(tensor.detach()) > _unit(self.first)).sum() * 2 > tensor.numel())


class _References(Shadow):
    """FP32 copies of a few storages, and of what is computed from them until the step ends."""

    def __init__(self) -> None:
        super().__init__(run_op)
        self.held: dict[int, list[State]] = {}  #: by storage

    def hold(self, tensor: torch.Tensor, state: State) -> None:
        """Follow a tensor from what it holds now."""
        self.held.setdefault(_key(tensor), []).append(state)
        if self.of(tensor) is None:
            self._adopt(tensor)

    def step_ends(self) -> None:
        """Forget what was computed, and look whether writes were missed."""
        for key, states in list(self.held.items()):
            for state in [one for one in states if not self._still_there(one, key)]:
                states.remove(state)
            if not states:
                del self.held[key]
        self._references = {key: one for key, one in self._references.items() if key in self.held}

    def _still_there(self, state: State, key: int) -> bool:
        tensor = state.tensor()
        if tensor is None or state.done:
            return False
        state.missed |= tensor._version - state.version > state.writes
        if _key(tensor) != key and not state.missed:  # its data were given other memory
            state.missed = self.of(tensor) is None
            self.held.setdefault(_key(tensor), []).append(state)
            return False
        return not state.missed

    def _beside(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return super()._beside(tensor) if tensor.is_floating_point() else None

    def _differs(self, args: Any, kwargs: Any) -> bool:
        values = (*args, *kwargs.values()) if kwargs else args
        return any(self._beside(tensor) is not None for tensor in tensors_of(values))

    def _follow(
        self, rule: Effects, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        if not self._differs(args, kwargs):
            return None
        targets = [tensor for tensor in tensors_of(written(rule, args, kwargs)) if readable(tensor)]
        states = [state for tensor in targets for state in self.held.get(_key(tensor), ())]
        for state in states:
            state.writes += 1
            state.place = state.place if state.place[1] else _line()
            state.missed = state.missed or rule.message or rule.once
        passing = [tensor for tensor in targets if self.of(tensor) is None]
        if (not states and (passing or _is_models(rule, args))) or rule.message:
            for tensor in targets:
                if _key(tensor) not in self.held:
                    self.forget(tensor)
            return None
        follow = super()._follow(rule, func, args, kwargs)

        def and_forget(out: Any) -> None:
            if follow is not None:
                follow(out)
            for tensor in passing:
                self.forget(tensor)

        return and_forget

    def _take(self, out: Any) -> None:
        for tensor in tensors_of((out,)):
            if readable(tensor):
                for state in self.held.get(_key(tensor), ()):
                    state.missed = True
                self.forget(tensor)


class _Mode(OwnMode):
    """Lets every operation run as it is, and then what is followed."""

    def __init__(self, references: _References) -> None:
        super().__init__()
        self._references = references

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types and (found := way(types)) is not Way.RECORDED:
            return NotImplemented if found is Way.APART else func(*args, **(kwargs or {}))
        if _current_node() is not None:
            return func(*args, **(kwargs or {}))
        return self._references.run(func, args, kwargs or {})


class Following:
    """Follows some tensors for some steps."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Begin with what they hold now."""
        self._references = _References()
        self._references.gave_way = self._gives_way
        self.states: list[State] = []
        self.steps = 0
        for name, tensor in tensors:
            state = State(weakref.ref(tensor), name, tensor.detach().clone(), tensor._version)
            self._references.hold(tensor, state)
            self.states.append(state)
        self._mode = _Mode(self._references)
        self._mode.__enter__()
        self._paused = False

    @property
    def active(self) -> bool:
        """Tell whether something is still followed."""
        return bool(self._references.held)

    def elsewhere(self) -> OwnMode:
        """Return what follows an operation in another thread."""
        return _Mode(self._references)

    def pause(self) -> None:
        """See nothing for a while."""
        self._paused = self._mode.pause() or self._paused

    def resume(self) -> None:
        """Go on."""
        if self._paused:
            self._paused = False
            self._mode.resume()

    def step_ends(self) -> None:
        """Take note of the end of a step, and look now and then at how far everything has come."""
        self.steps += 1
        self._references.step_ends()
        if not self.steps % _OFTEN or (self.steps >= _FIRST and self.steps.bit_count() == 1):
            self.judge()

    def judge(self, *, last: bool = False) -> None:
        """Judge what has come far enough; with `last` also what has changed little, and the same in half precision."""
        for states in list(self._references.held.values()):
            for state in states:
                tensor = state.tensor()
                wide = None if tensor is None else self._references.of(tensor)
                if tensor is not None and wide is not None and not (state.done or state.missed):
                    _judge(state, tensor.detach(), wide, last=last)

    def end(self) -> None:
        """Stop following."""
        self._paused = False
        self._mode.__exit__()
        self._references.clear()
        self._references.held.clear()

    def _gives_way(self, _: Exception) -> None:
        """Leave all of it unjudged because of an error of our own."""
        for state in self.states:
            state.missed = True


def _judge(state: State, tensor: torch.Tensor, wide: torch.Tensor, *, last: bool) -> None:
    """Compare a tensor with FP32's, as far as that has moved."""
    if tensor.shape != state.first.shape:
        state.missed = True
        return
    first, unit = state.first.float(), _unit(state.first)
    few = tensor.numel() <= FEW_NUMBERS
    intended, kept = wide.float() - first, tensor.float() - first
    size, changes = intended.abs(), (intended != 0) & intended.isfinite()
    enough = torch.maximum((2 if few else 1) * UNITS * unit, SHARE * first.abs())
    moved = changes & (
        size >= torch.minimum(enough, (first.abs() / 2).clamp_min(unit))
    )  # what is near 0 may halve
    wrong = ~kept.isfinite() | (kept.abs() > TOO_FAR * size)
    short = ~wrong & ((intended - kept).abs() > LOST * size)
    little = changes & (size >= UNITS / 2 * unit)
    kinds = [
        changes,
        moved,
        moved & short,
        moved & wrong,
        little,
        little & (wrong | ((intended - kept).abs() > size / 2)),
    ]
    counts = [int(count) for count in torch.stack([one.sum() for one in kinds]).tolist()]
    changed, far, lost, off, moved_a_little, lost_of_it = counts
    if few and lost + off:
        state.losses = tuple(_number_by_number(state, *kinds[1:4]))
    elif lost + off > MOST_LOST * far and 2 * far >= changed:
        state.losses = (UpdateLoss(state.name, far, lost, off, *state.place),)
    known = 2 * moved_a_little >= changed > 0 or (last and (state.fine or not changed))
    right = known and lost_of_it <= KEPT * moved_a_little and not state.losses
    before, state.fine_here = state.fine_here, right
    state.fine = state.fine_here
    state.done = bool(state.losses) or (before and state.fine)  # what is rounded away shows in the long run


def _number_by_number(
    state: State, moved: torch.Tensor, stuck: torch.Tensor, wrong: torch.Tensor
) -> Iterator[UpdateLoss]:
    """Yield what was lost of each number of a small tensor."""
    rows = torch.stack([one.flatten() for one in (moved, stuck, wrong)]).int().t().tolist()
    for at, (far, lost, off) in enumerate(rows):
        if lost or off:
            name = state.name if len(rows) == 1 else f"{state.name}[{at}]"
            yield UpdateLoss(name, far, lost, off, *state.place)


def _unit(tensor: torch.Tensor) -> torch.Tensor:
    """Return what one unit in the last place is worth, element by element."""
    info = torch.finfo(tensor.dtype)
    exponent = torch.frexp(tensor.float().abs().clamp_min(info.tiny)).exponent
    return torch.ldexp(torch.full_like(tensor, info.eps, dtype=torch.float32), exponent - 1)


def _key(tensor: torch.Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


def _is_models(rule: Effects, args: tuple[Any, ...]) -> bool:
    """Tell whether an operation is part of a model's computing rather than of a change to a state."""
    if rule.name in _PRODUCTS or rule.name.startswith("_scaled_dot_product"):
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_of(args))


def _line() -> tuple[str, int]:
    source = source_finder()
    return source.line(source.spot())


def sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return some of a tensor's numbers; None where they lie apart."""
    if not tensor.is_contiguous() or not readable(tensor):
        return None
    with unseen():
        flat = tensor.detach().view(-1)
        return flat[:: max(1, flat.numel() // 64)].clone()
