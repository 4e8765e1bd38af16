"""Tensors in half precision that a script changes beside its training, followed in FP32 for some steps.

Averages of weights, counters, banks: each of their changes is small, and what half precision rounds away of one is
gone. Whether that matters shows when many add up. So the same changes are made once more to an FP32 copy, from the
copy's own numbers, for as long as it takes FP32 to come far enough. A second copy begins a little off: how much of that
is left tells how long a state remembers, so that one which stands still need not be watched until FP32 is far away.
Nothing else is repeated: no product, nothing that a gradient flows through, nothing of autograd or an optimizer.
"""

import functools
import re
import weakref
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.observe.execution import Args, Execute, Kwargs, run_op
from ampcheck.observe.modes import OwnMode
from ampcheck.observe.reference.beside_mode import BesideMode
from ampcheck.observe.reference.effects import Effects, written
from ampcheck.observe.reference.picks import CONVERTS
from ampcheck.observe.reference.shadow import Follow, Shadow
from ampcheck.observe.reference.storage import Reference
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.half_judged import (
    LONG_ENOUGH,
    State,
    compare,
    is_remainder,
    makes_up,
)
from ampcheck.observe.script.state.operations import fills, is_models
from ampcheck.observe.script.state.remade import Remade
from ampcheck.observe.script.state.standing_still import beside_of, stays
from ampcheck.observe.script.state.storages import fp32_memory, key_of, whole
from ampcheck.observe.script.state.underflow import keeps_small
from ampcheck.observe.source import in_engine, running_line
from ampcheck.observe.statistics.memory import readable, tensors_of

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

#: Operations that forget what a state held: they lose no change.
_RESETS = frozenset({"zero_", "fill_"})
#: Reads a number to show it, or to decide by it.
_SHOWS = "_local_scalar_dense"
_NUMBER = re.compile(r"\d+")
_current_node = torch._C._current_autograd_node
_FIRST, _OFTEN = 4, 64  #: steps after which everything is judged for the first time, and again


class _References(Shadow):
    """FP32 copies of a few storages, and of what is computed from them until the step ends."""

    def __init__(self, execute: Execute = run_op) -> None:
        super().__init__(execute)
        self.held: dict[int, list[State]] = {}  #: by storage
        #: By storage of what was computed and is kept, as weights are that a script fills from a state and trains:
        #: how far FP32's numbers are from these. Whatever an optimizer adds, it adds to both.
        self._apart: dict[int, tuple[StorageWeakRef, torch.Tensor]] = {}
        self.shapes: set[torch.Size] = set()  #: of what is followed
        self._remade = Remade()
        self.underflows: dict[
            torch.Size, torch.Tensor
        ] = {}  #: by shape, whether numbers became zero in float16

    def hold(self, tensor: torch.Tensor, state: State, beside: float = 0.0) -> None:
        """Follow a tensor from what it holds now, or from that far beside it."""
        self.held.setdefault(key_of(tensor), []).append(state)
        self.shapes.add(tensor.shape)
        if self.of(tensor) is None:
            self._adopt(tensor).add_(beside)
        self._remade.begins(state, beside)

    def alone(self) -> None:
        """Run operations without what ran beside them so far."""
        self._execute = run_op

    def step_ends(self) -> None:
        """Forget what was computed, and look whether writes were missed."""
        for key, states in list(self.held.items()):
            for state in [one for one in states if not self._still_there(one, key)]:
                states.remove(state)
            if not states:
                del self.held[key]
        self._remade.step_ends()
        self.part()

    def part(self) -> None:
        """Forget what was computed; of what is kept, remember how far from FP32's it is."""
        with unseen():
            references = dict(self._references)  # other threads add to it meanwhile
            for key, reference in references.items():
                if not self._is_kept(key) and (memory := fp32_memory(reference)) is not None:
                    self._apart[key] = reference.storage, reference.flat - memory
        self._references = {key: one for key, one in references.items() if self._is_kept(key)}
        self._apart = {key: kept for key, kept in list(self._apart.items()) if not kept[0].expired()}

    def _is_kept(self, key: int) -> bool:
        return key in self.held or self._remade.holds(key)

    def _still_there(self, state: State, key: int) -> bool:
        tensor = state.tensor()
        if tensor is None and not state.done:
            tensor = self._remade.takes_over(state)
        if tensor is None or state.done:
            return False
        state.missed |= tensor._version - state.version > state.writes
        state.rounds += state.writes > state.counted
        state.counted = state.writes
        if key_of(tensor) != key and not state.missed:  # its data were given other memory
            state.missed = self.of(tensor) is None
            self.held.setdefault(key_of(tensor), []).append(state)
            return False
        return not state.missed

    def _beside(self, tensor: torch.Tensor) -> Reference | None:
        if not tensor.is_floating_point():
            return None
        if self._apart and readable(tensor) and (kept := self._apart.pop(key_of(tensor), None)) is not None:
            storage = tensor.untyped_storage()
            with unseen():
                self._hold(Reference(storage, kept[1].add_(whole(storage))))
        return super()._beside(tensor)

    def _differs(self, args: Any, kwargs: Any) -> bool:
        values = (*args, *kwargs.values()) if kwargs else args
        return any(self._beside(tensor) is not None for tensor in tensors_of(values))

    def _follow(self, rule: Effects, func: Any, args: Args, kwargs: Kwargs) -> Follow | None:
        if not self._differs(args, kwargs):
            return self._may_begin(rule, args) or keeps_small(self, rule.name, func, args, kwargs)
        targets = [tensor for tensor in tensors_of(written(rule, args, kwargs)) if readable(tensor)]
        states = [state for tensor in targets for state in self.held.get(key_of(tensor), ())]
        self._note_reads(rule, states, (*args, *kwargs.values()))
        for state in states:
            state.writes += 1
            if not state.place[1] and rule.name not in _RESETS:
                state.place = running_line()
            state.missed = state.missed or rule.message or rule.once
        passing = [tensor for tensor in targets if self.of(tensor) is None and not fills(rule, tensor)]
        if (not states and (passing or is_models(rule, args))) or rule.message:
            for tensor in targets:
                if key_of(tensor) not in self.held:
                    self.forget(tensor)
            return None
        follow, origin = super()._follow(rule, func, args, kwargs), self._origin(args)

        def and_forget(out: Any) -> None:
            if follow is not None:
                follow(out)
                self._remade.note(origin, (out, targets))
            for tensor in passing:
                self.forget(tensor)

        return and_forget

    def _may_begin(self, rule: Effects, args: Args) -> Follow | None:
        new = self._remade.next_new(args[0].shape) if rule.name == CONVERTS else None
        return None if new is None else functools.partial(self._begin_new, *new)

    def _begin_new(self, state: State, beside: float, out: torch.Tensor) -> None:
        """Follow what is cast to what a new state may be next, from what that holds."""
        if out.dtype is state.first.dtype and readable(out):
            self._adopt(out).add_(beside)
            self._remade.note(state, out, known=False)

    def _origin(self, args: Args) -> State | None:
        """Return the state that an operation computes from."""
        given = [tensor for tensor in tensors_of(args) if readable(tensor)]
        held = next((self.held[key_of(one)] for one in given if key_of(one) in self.held), None)
        return held[0] if held else self._remade.origin(given)

    def _note_reads(self, rule: Effects, written: list[State], values: Args) -> None:
        """Take note of what is computed from; to change a state reads it, too, and does not count."""
        if written or rule.name == _SHOWS:
            return
        for tensor in tensors_of(values):
            for state in self.held.get(key_of(tensor), ()) if tensor.is_floating_point() else ():
                state.read = True

    def _take(self, out: Any, factor: float = 1.0) -> None:  # noqa: ARG002  # no backward is followed
        for tensor in tensors_of((out,)):
            if readable(tensor):
                for state in self.held.get(key_of(tensor), ()):
                    state.missed = True
                self.forget(tensor)


class _Follower(BesideMode):
    """Follows what a script computes, also in hooks that a backward calls."""

    def skips(self) -> bool:
        """Tell whether an operation is one of autograd's own."""
        return _current_node() is not None and in_engine()


class Following:
    """Follows some tensors for some steps."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]], new: Container[int] = ()) -> None:
        """Begin with tensors by their names; some are `new`, and no states unless others take their places."""
        self._probe = _References()
        self._references = _References(self._probe.run)
        self._references.gave_way = self._probe.gave_way = self._gives_way
        self.states: list[State] = []
        self._remainders: set[str] = set()  #: names, without numbers, of what holds remainders of rounding
        self.steps = 0
        for name, tensor in tensors:
            first, beside = tensor.detach().clone(), beside_of(tensor)
            state, other = (State(weakref.ref(tensor), name, first, tensor._version) for _ in range(2))
            state.perhaps = other.perhaps = id(tensor) in new
            self._references.hold(tensor, state)
            self._probe.hold(tensor, other, beside)
            self.states.append(state)
        self._mode = _Follower(self._references)
        self._mode.__enter__()
        self._paused = False

    @property
    def active(self) -> bool:
        """Tell whether something is still followed, beside remainders."""
        held = (state for states in list(self._references.held.values()) for state in states)
        return any(_kind(state.name) not in self._remainders for state in held)

    def elsewhere(self) -> OwnMode:
        """Return what follows an operation in another thread."""
        return BesideMode(self._references)

    def pause(self) -> None:
        """See nothing for a while."""
        self._references.part()
        self._probe.part()
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
        self._probe.step_ends()
        if not self.steps % _OFTEN or (self.steps >= _FIRST and self.steps.bit_count() == 1):
            self.judge()
            self._references.step_ends()
            if self.active:
                self._renew()
        if self.steps == LONG_ENOUGH:
            for state in self.states:
                state.done = state.done or (state.perhaps and not state.writes)
            self._references.alone()
            self._probe.clear()
            self._probe.held.clear()

    def _renew(self) -> None:
        """Follow what was fine so far once more, while something else is followed: it may have grown since."""
        for at, state in enumerate(self.states):
            tensor = state.tensor()
            if state.done and state.fine and tensor is not None:
                first, version = tensor.detach().clone(), tensor._version
                again = State(
                    state.tensor,
                    state.name,
                    first,
                    version,
                    fine=True,
                    kept=state.kept,
                    place=state.place,
                    parameter=state.parameter,
                    stepped=state.stepped,
                    read=state.read,
                    overflown=state.overflown,
                )
                self._references.hold(tensor, again)
                self.states[at] = again

    def judge(self, *, last: bool = False) -> None:
        """Judge what has come far enough; with `last` also what has changed little, and the same in half precision."""
        held = [state for states in list(self._references.held.values()) for state in states]
        tensors = [(state, tensor) for state in held if (tensor := state.tensor()) is not None]
        for state, tensor in tensors:
            if self._wholes(state, tensor):
                self._remainders.add(_kind(state.name))
        wholes = {id(state): self._wholes(state, tensor) for state, tensor in tensors}
        rests: dict[int, list[torch.Tensor]] = {}
        for state, tensor in tensors:
            for made in wholes[id(state)]:
                rests.setdefault(id(made), []).append(tensor.detach())
        for state, tensor in tensors:
            wide = self._references.of(tensor)
            if wholes[id(state)]:  # FP32 has no remainder: it is followed as long as what it belongs to
                state.fine = True
            elif wide is not None and not (state.done or state.missed):
                still = stays(state, wide, self._probe.of(tensor), self.steps)
                for rest in rests.get(id(tensor), ()):
                    still &= ~makes_up(tensor.detach(), rest, wide)
                compare(state, tensor.detach(), wide, still, last=last)
                state.underflows = bool(self._references.underflows.get(tensor.shape, False))

    def _wholes(self, state: State, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return what this may keep the rounding of, as Kahan's summation does for the next time.

        Of tensors of one number it may be any.
        """
        others = [one.tensor() for one in self.states]
        if state.parameter is not None:
            others.append(state.parameter())
        like = [one for one in others if one is not None and one is not tensor]
        like = [one for one in like if (one.shape, one.dtype) == (tensor.shape, tensor.dtype)]
        known = _kind(state.name) in self._remainders
        return [one for one in like if is_remainder(tensor.detach(), one.detach(), one_of_them=known)]

    def end(self) -> None:
        """Stop following."""
        self._paused = False
        self._mode.__exit__()
        for references in (self._references, self._probe):
            references.clear()
            references.held.clear()

    def _gives_way(self, _: Exception) -> None:
        """Leave all of it unjudged because of an error of our own."""
        for state in self.states:
            state.missed = True


def _kind(name: str) -> str:
    """Return a name without its numbers: states of one kind are called alike."""
    return _NUMBER.sub("#", name)
