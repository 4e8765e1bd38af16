"""Tensors in half precision that a script changes beside its training, as an average of the weights is.

No step that is recorded holds these changes. A tensor counts how often it was written in place, and one whose data are
given to it anew holds other numbers; so what changes in every step, and is no part of an optimizer, is found when a
script has taken some steps. It is followed in FP32 then, again and again at ever greater distances.

Some scripts go through data without a step, to measure something: the importance of weights is a sum of squared
gradients, the mean of a class one of outputs. In such a pass each backward, or each region of autocast that none
follows, stands for a step.
"""

import sys
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.reference.sharing import among_ranks
from ampcheck.observe.script.journal import dtype_name
from ampcheck.observe.script.looking_again import EarlyLook
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.half_judged import State
from ampcheck.observe.script.state.half_state import Following
from ampcheck.observe.script.state.naming import NAMELESS, names_of
from ampcheck.observe.script.state.other_threads import OtherThreads
from ampcheck.observe.script.state.passes import Passes
from ampcheck.observe.script.state.samples import Seen, seen_now
from ampcheck.observe.script.state.untrained import sums, untrained
from ampcheck.observe.script.state.update_watch import MOST
from ampcheck.observe.script.watched_thread import WatchedThread
from ampcheck.observe.statistics.memory import half_leaves
from ampcheck.values.trace import UpdateLoss

if TYPE_CHECKING:
    import weakref

#: Tells what a tensor of some name had lost before training.
Lost = Callable[[torch.Tensor, str], tuple[UpdateLoss, ...]]
#: Steps of a script from which on what is written in all of them stands out.
FEW_STEPS = 4
#: Steps that something is followed at most, before it is left alone for as long as the script has run.
MOST_STEPS = 512
#: Memory is looked through for new tensors again after so many times what that has taken, and after as many steps.
_RARELY = 20


class HalfAverages:
    """Finds tensors in half precision that are written in every step, and follows them."""

    def __init__(self, thread: WatchedThread, trained: Container[torch.Tensor]) -> None:
        """Prepare; `thread` is the one that trains, `trained` what optimizers change."""
        self._thread = thread
        self._trained = trained
        self._lost: Lost = lambda *_: ()
        #: By tensor that was there before training, how often it was written.
        self._before = WeakIdKeyDictionary()
        #: How many there are of each dtype that were written in every step and not judged, and their elements together.
        self.found: dict[str, tuple[int, int]] = {}
        self._abandoned = False
        self._among_ranks = False  #: there were others: a script may have left them before it ended
        self.due = FEW_STEPS // 2  #: the step from which on there is something to do
        self._look_at = self._pass_at = 0.0  #: times from which on memory is looked through again
        self._twice = 0  #: the step from which on it is in any case
        self._seen: dict[int, Seen] = {}
        self._new: list[torch.Tensor] = []  #: made since memory was looked through, and not written
        self._new_at = 0  #: the step from which on such are followed again
        #: By state of an optimizer of the script's own, the parameter.
        self._optimizers: dict[int, weakref.ref[torch.Tensor]] = {}
        #: By parameter in half precision that an optimizer of the script's own steps, the class of that.
        self._stepped: dict[int, str] = {}
        self.judged = frozenset[str]()  #: classes of optimizers of which all such parameters were judged
        self.following: Following | None = None
        self._states: dict[int, State] = {}  #: the last of each tensor
        self._any = False  #: some change from step to step, or are made anew
        self.passes = Passes()
        self.of_pass = False  #: a pass is followed, not the steps
        self._at_pass: list[Seen] = []  #: tensors as they were in it: what steps change is remembered apart
        self._others = OtherThreads(thread, lambda: self.following)
        self._hears = False  #: other threads, as something was written that nobody has seen

    def begin(self) -> None:
        """Begin with what is there already."""
        with unseen():
            self._before.update({tensor: tensor._version for tensor in half_leaves()})

    def shows(self, early: EarlyLook, lost: Lost) -> None:
        """Tell of numbers in half precision that change from step to step, or are made anew.

        `lost` says what such a tensor had lost before training.
        """
        self._lost = lost
        early.kept = lambda: self._any and not self._abandoned
        early.followed = lambda: self.following is not None

    @property
    def losses(self) -> tuple[UpdateLoss, ...]:
        """Return what half precision has lost."""
        every = self._states.values()
        return tuple(
            replace(
                loss,
                stepped=state.stepped,
                underflows=state.underflows,
                in_fp32=state.first.dtype not in HALVES,
                dtype=dtype_name(state.first.dtype),
            )
            for state in every
            for loss in state.losses
        )

    def keeps(self, tensor: torch.Tensor) -> bool:
        """Tell whether half precision was found to keep what changes a tensor over many steps."""
        state = self._known(tensor)
        return state is not None and state.kept

    def _known(self, tensor: torch.Tensor) -> State | None:
        """Return what is known of a tensor; what has become infinite since is known then, too."""
        state = self._states.get(id(tensor))
        if state is None or state.tensor() is not tensor:
            return None
        state.becomes_infinite()
        return state

    def step_ends(self, steps: int) -> None:
        """Follow what changes beside the steps, if it is time to."""
        try:
            self.passes.step_ends()
            if self.of_pass:
                self._judge_all()
            if steps >= self.due:
                self._step_ends(steps)
        except Exception:  # noqa: BLE001  # of our own: what is found is not judged, and the rest is watched on
            self.abandon()

    def _step_ends(self, steps: int) -> None:
        following = self.following
        if following is not None:
            with unseen():
                following.step_ends()
            self._keep(following)
            unheard = following.steps == FEW_STEPS and not self._hears and _missed(following.states)
            if unheard or not following.active or following.steps >= MOST_STEPS:
                self._stop()
                self.due = steps + steps // 2
                if not any(state.perhaps and state.writes for state in following.states):
                    self._new_at = 4 * steps
            return
        self.due = steps + max(2, steps // 2)
        self._among_ranks = self._among_ranks or among_ranks()
        if self._abandoned or self._among_ranks:
            return
        with unseen():
            found = {
                id(held): held for state in self._states.values() if (held := state.tensor()) is not None
            }
            began = time.perf_counter()
            if steps <= FEW_STEPS or began > self._look_at or steps >= self._twice:
                found |= {id(tensor): tensor for tensor in self._changed(steps, self._beside())}
                now = time.perf_counter()
                self._look_at, self._twice = now + _RARELY * (now - began), 2 * steps
            else:
                found |= {id(tensor): tensor for tensor in self._changed(steps, self._known_ones())}
            new, self._new = self._new, []
            self._start(steps, found.values(), new if steps >= self._new_at else ())

    def _known_ones(self) -> list[torch.Tensor]:
        return [tensor for seen in self._seen.values() if (tensor := seen.tensor()) is not None]

    def _changed(self, steps: int, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return what was written in every step, or since it was looked at, or holds other numbers."""
        found, seen, self._new = [], {}, []
        for tensor in tensors:
            held = self._seen.get(id(tensor))
            now = seen[id(tensor)] = seen_now(tensor)
            if held is None or held.tensor() is not tensor:
                # Another thread may be about to write it in this step; what is new may have been made after some.
                often = steps - 1 if tensor in self._before else min(steps - 1, FEW_STEPS)
                changed = tensor._version - self._before.get(tensor, 0) >= often
                if not changed and self._seen and tensor not in self._before:
                    self._new.append(tensor)
                self._any = self._any or (steps >= FEW_STEPS and tensor not in self._before)
            else:
                changed = held.differs(now)
            if changed:
                self._any = True
                found.append(tensor)
        self._seen = seen
        return found

    def _start(self, steps: int, tensors: Iterable[torch.Tensor], new: Sequence[torch.Tensor] = ()) -> None:
        """Follow tensors, and some that are `new`: they may take the place of others, and others theirs."""
        every = [*tensors, *new] if steps >= FEW_STEPS else []
        names = names_of(every) if every else {}
        perhaps = {id(one) for one in new if not names.get(id(one), NAMELESS).startswith(NAMELESS)}
        unnamed = {id(one) for one in new} - perhaps
        gone = {one.role: one for one in self._states.values() if one.perhaps and one.tensor() is None}
        held, before, elements = [], [], 0
        for tensor in (one for one in every if id(one) not in unnamed):
            role = names[id(tensor)], tensor.dtype, tensor.shape
            known = self._known(tensor) or (gone.get(role) if id(tensor) in perhaps else None)
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            if (known is None or not known.losses) and elements + size <= MOST:
                held.append(tensor)
                before.append(known)
                elements += size
        if not held:
            return
        self._hears = self._hears or _missed(self._states.values())
        self.following = Following(((names[id(tensor)], tensor) for tensor in held), perhaps)
        self.due = 0
        for tensor, known, state in zip(held, before, self.following.states, strict=True):
            state.parameter = self._optimizers.get(id(tensor))
            state.stepped = id(tensor) in self._stepped
            state.losses = self._lost(tensor, state.name)
            if known is not None:
                state.fine, state.kept = known.fine, known.kept
                state.read, state.overflown = known.read, known.overflown
        self._keep(self.following)
        if self._hears:
            self._others.hear()

    def _keep(self, following: Following) -> None:
        """Take note of the last state of each tensor."""
        kept = [state for state in following.states if state.writes or not state.perhaps]
        now = {id(tensor): state for state in kept if (tensor := state.tensor()) is not None}
        if now:
            same, again = set(map(id, now.values())), {one.role for one in now.values() if one.perhaps}
            old = {key: one for key, one in self._states.items() if id(one) not in same}
            stay = {key: one for key, one in old.items() if one.tensor() is not None or one.role not in again}
            self._states = stay | now

    def _stop(self) -> None:
        following, self.following, self.of_pass = self.following, None, False
        self._others.leave()
        if following is not None:
            following.end()

    def abandon(self) -> None:
        """Judge nothing: what runs cannot be followed, as compiled code and CUDA graphs cannot."""
        self._abandoned, self._new = True, []
        self.due = sys.maxsize
        for state in self._states.values():
            state.missed, state.fine = True, False
        self._stop()

    def goes_on(self, count: int) -> None:
        """Take note of a pass that has had so many backwards without a step, or regions without a backward."""
        if not self._thread.runs or self._abandoned or self._among_ranks:
            return
        try:
            self.passes.goes_on(count, self)
        except Exception:  # noqa: BLE001  # of our own, as above
            self.abandon()

    def pass_begins(self) -> None:
        """Remember what there is when a pass has begun, unless another one was a moment ago."""
        began = time.perf_counter()
        if self.following is None and began > self._pass_at:
            with unseen():
                self._at_pass = [seen_now(tensor) for tensor in (*self._beside(), *sums())]
            now = time.perf_counter()
            self._pass_at = now + _RARELY * (now - began)

    def pass_goes_on(self, nth: int) -> None:
        """Follow what was written meanwhile."""
        with unseen():
            if self.of_pass and self.following is not None:
                self.following.step_ends()
                self._keep(self.following)
                if not self.following.active:
                    self._stop()  # until it has gone on for as long again
            elif self.following is None and nth.bit_count() == 1:
                held = [(one, tensor) for one in self._at_pass if (tensor := one.tensor()) is not None]
                self._at_pass, due = [seen_now(tensor) for _, tensor in held], self.due
                pairs = zip(held, self._at_pass, strict=True)
                self._start(FEW_STEPS, [tensor for (one, tensor), now in pairs if one.differs(now)])
                self.due, self.of_pass = due, self.following is not None

    def pause(self) -> None:
        """See nothing of a backward, or of an optimizer."""
        if self.following is not None:
            self.following.pause()

    def resume(self) -> None:
        """Go on."""
        if self.following is not None:
            self.following.resume()

    def end(self, steps: int) -> None:
        """Look at what was written since, but for what optimizers change."""
        self._judge_all()
        if steps <= FEW_STEPS or self._among_ranks or among_ranks():
            return  # before it is followed, or between ranks, where weights travel in buffers in half precision
        with unseen():
            self._look(steps)

    def _judge_all(self) -> None:
        """Judge what is followed as it stands, and follow it no more."""
        if (following := self.following) is not None:
            with unseen():
                following.step_ends()
                following.judge(last=True)
            self._keep(following)
            self._stop()

    def _beside(self) -> list[torch.Tensor]:
        tensors, self._optimizers, self._stepped = untrained()
        return [one for one in tensors if one not in self._trained or id(one) in self._stepped]

    def _look(self, steps: int) -> None:
        tensors = self._beside()
        open_ends = [tensor for tensor in tensors if self._is_unjudged(tensor, steps)]
        kinds = {self._stepped[id(tensor)] for tensor in open_ends if id(tensor) in self._stepped}
        self.judged = frozenset(self._stepped.values()) - kinds
        gone = [state for state in self._states.values() if state.tensor() is None and not state.judged]
        held = [tensor for tensor in open_ends if id(tensor) not in self._stepped]
        first = [state.first for state in gone if state.writes and not state.stepped]
        for tensor in [*held, *(one for one in first if one.dtype in HALVES)]:
            dtype = str(tensor.dtype).removeprefix("torch.")
            number, elements = self.found.get(dtype, (0, 0))
            self.found[dtype] = number + 1, elements + tensor.numel()

    def _is_unjudged(self, tensor: torch.Tensor, steps: int) -> bool:
        """Tell whether a tensor changed, and it is not known what half precision makes of that."""
        if (state := self._known(tensor)) is not None:
            return not state.judged or state.outgrown()
        seen = self._seen.get(id(tensor))
        if seen is not None and seen.tensor() is tensor:
            rarely = tensor._version > seen.version + 1
        else:  # it was made since memory was looked through: when the training was over, for one
            rarely = tensor not in self._before and tensor._version >= FEW_STEPS
        return rarely or tensor._version - self._before.get(tensor, 0) >= steps


def _missed(states: Iterable[State]) -> bool:
    return any(state.missed for state in states)
