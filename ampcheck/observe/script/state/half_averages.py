"""Tensors in half precision that a script changes beside its training, as it does with an average of the weights.

No step that is recorded holds these changes. A tensor counts how often it was written in place, and one whose data are
given to it anew holds other numbers; so what changes in every step, and is no part of an optimizer, is found when a
script has taken some steps. It is followed in FP32 then, again and again at ever greater distances.
"""

import sys
import time
import weakref
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampcheck.observe.patches import Original, Patches
from ampcheck.observe.reference.sharing import among_ranks
from ampcheck.observe.script.looking_again import EarlyLook
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.half_state import Following, sample
from ampcheck.observe.script.state.naming import names_of
from ampcheck.observe.script.state.update_watch import MOST
from ampcheck.observe.script.watched_thread import WatchedThread
from ampcheck.observe.statistics.memory import half_leaves, instances
from ampcheck.values.trace import UpdateLoss

if TYPE_CHECKING:
    from ampcheck.observe.script.state.half_judged import State

#: Steps of a script from which on what is written in all of them stands out.
FEW_STEPS = 4
#: Steps that something is followed at most, before it is left alone for as long as the script has run.
MOST_STEPS = 512
#: Memory is looked through for new tensors again after so many times what that has taken.
_RARELY = 20
#: What writes a tensor in a thread of the script's own, beside the functions of torch for several tensors at once.
_WRITES = (
    """add_ sub_ mul_ div_ lerp_ addcmul_ addcdiv_ copy_ __iadd__ __isub__ __imul__ __itruediv__""".split()
)


class _Seen(NamedTuple):
    """A tensor as it was when memory was looked through."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    sample: torch.Tensor | None


class HalfAverages:
    """Finds tensors in half precision that are written in every step, and follows them."""

    def __init__(self, thread: WatchedThread, trained: Container[torch.Tensor]) -> None:
        """Prepare; `thread` is the one that trains, `trained` what optimizers change."""
        self._thread = thread
        self._trained = trained
        self._before: dict[int, int] = {}
        #: How many there are of each dtype that were written in every step and not judged, and their elements together.
        self.found: dict[str, tuple[int, int]] = {}
        self._abandoned = False
        self._among_ranks = False  #: there were others: a script may have left them before it ended
        self.due = FEW_STEPS // 2  #: the step from which on there is something to do
        self._look_at = 0.0  #: the time from which on memory is looked through again
        self._seen: dict[int, _Seen] = {}
        self._optimizers = frozenset[int]()  #: the states of a script's own
        self.following: Following | None = None
        self._states: dict[int, State] = {}  #: the last of each tensor
        self._any = False  #: some change from step to step, or are made anew
        self._patches = Patches()  #: of what other threads call

    def begin(self) -> None:
        """Begin with what is there already."""
        with unseen():
            self._before = {id(tensor): tensor._version for tensor in half_leaves()}

    def shows(self, early: EarlyLook) -> None:
        """Tell of numbers in half precision that change from step to step, or are made anew."""
        early.kept = lambda: self._any and not self._abandoned
        early.followed = lambda: self.following is not None

    @property
    def losses(self) -> tuple[UpdateLoss, ...]:
        """Return what half precision has lost."""
        return tuple(loss for state in self._states.values() for loss in state.losses)

    def step_ends(self, steps: int) -> None:
        """Follow what changes beside the steps, if it is time to."""
        try:
            self._step_ends(steps)
        except Exception:  # noqa: BLE001  # of our own: what is found is not judged, and the rest is watched on
            self.abandon()

    def _step_ends(self, steps: int) -> None:
        following = self.following
        if following is not None:
            with unseen():
                following.step_ends()
            self._keep(following)
            if not following.active or following.steps >= MOST_STEPS:
                self._stop()
                self.due = steps + steps // 2
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
            if steps <= FEW_STEPS or began > self._look_at:
                found |= {id(tensor): tensor for tensor in self._changed(steps, self._beside())}
                now = time.perf_counter()
                self._look_at = now + _RARELY * (now - began)
            else:
                known = (seen.tensor() for seen in self._seen.values())
                still = [tensor for tensor in known if tensor is not None]
                found |= {id(tensor): tensor for tensor in self._changed(steps, still)}
            self._start(steps, found.values())

    def _changed(self, steps: int, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return what was written in every step, or since it was looked at, or holds other numbers."""
        found, seen = [], {}
        for tensor in tensors:
            held = self._seen.get(id(tensor))
            now = seen[id(tensor)] = _Seen(weakref.ref(tensor), tensor._version, sample(tensor))
            if held is None or held.tensor() is not tensor:
                changed = tensor._version - self._before.get(id(tensor), 0) >= steps
                self._any = self._any or (steps >= FEW_STEPS and id(tensor) not in self._before)
            else:
                changed = now.version != held.version or _differ(now.sample, held.sample)
            if changed:
                self._any = True
                found.append(tensor)
        self._seen = seen
        return found

    def _start(self, steps: int, tensors: Iterable[torch.Tensor]) -> None:
        held, elements = [], 0
        for tensor in tensors:
            known = self._states.get(id(tensor))
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            if (known is None or not known.losses) and elements + size <= MOST and steps >= FEW_STEPS:
                held.append(tensor)
                elements += size
        if not held:
            return
        names = names_of(held)
        pairs = [(names[id(tensor)], tensor) for tensor in held]
        fine = {key for key, state in self._states.items() if state.fine}
        missed = any(state.missed for state in self._states.values())
        self.following = Following(pairs)
        self.due = 0
        for tensor, state in zip(held, self.following.states, strict=True):
            state.fine, state.of_optimizer = id(tensor) in fine, id(tensor) in self._optimizers
        self._keep(self.following)
        if missed:
            self._hear_threads()

    def _keep(self, following: Following) -> None:
        """Take note of the last state of each tensor."""
        for state in following.states:
            tensor = state.tensor()
            if tensor is not None:
                self._states[id(tensor)] = state

    def _hear_threads(self) -> None:
        """Hear of what other threads write: something was written that nobody has seen."""
        each = [name for name in vars(torch) if name.startswith("_foreach_") and name.endswith("_")]
        for owner, names in ((torch.Tensor, _WRITES), (torch, each)):
            for name in names:
                self._patches.put(owner, name, self._writes)

    def _writes(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        following = self.following
        if following is None or self._thread.runs:
            return original(*args, **kwargs)
        with following.elsewhere():
            return original(*args, **kwargs)

    def _stop(self) -> None:
        following, self.following = self.following, None
        self._patches.restore()
        if following is not None:
            following.end()

    def abandon(self) -> None:
        """Judge nothing: what runs cannot be followed, as compiled code and CUDA graphs cannot."""
        self._abandoned = True
        self.due = sys.maxsize
        for state in self._states.values():
            state.missed, state.fine = True, False
        self._stop()

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
        if self.following is not None:
            with unseen():
                self.following.step_ends()
                self.following.judge(last=True)
            self._stop()
        if steps < FEW_STEPS or self._among_ranks or among_ranks():
            return  # between ranks, weights travel in buffers in half precision
        with unseen():
            self._look(steps)

    def _beside(self) -> list[torch.Tensor]:
        tensors, self._optimizers = _beside()
        return [tensor for tensor in tensors if tensor not in self._trained]

    def _look(self, steps: int) -> None:
        for tensor in self._beside():
            state = self._states.get(id(tensor))
            if state is not None and state.tensor() is tensor:
                unjudged = not state.judged or state.outgrown()
            else:
                seen = self._seen.get(id(tensor))
                rarely = seen is not None and seen.tensor() is tensor and tensor._version > seen.version + 1
                unjudged = rarely or tensor._version - self._before.get(id(tensor), 0) >= steps
            if unjudged:
                dtype = str(tensor.dtype).removeprefix("torch.")
                number, elements = self.found.get(dtype, (0, 0))
                self.found[dtype] = number + 1, elements + tensor.numel()


def _differ(now: torch.Tensor | None, before: torch.Tensor | None) -> bool:
    return now is not None and before is not None and not torch.equal(now, before)


def _beside() -> tuple[list[torch.Tensor], frozenset[int]]:
    """Return tensors in half precision that no optimizer of torch's changes, and which others do."""
    tensors = half_leaves()
    if not tensors:
        return [], frozenset()
    known, own = {id(tensor.grad) for tensor in tensors if tensor.grad is not None}, set[int]()
    for optimizer in instances(*_kinds(torch.optim.Optimizer)):
        known.update(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
        (known if type(optimizer).__module__.startswith("torch.") else own).update(
            map(id, _states(optimizer))
        )
    return [tensor for tensor in tensors if id(tensor) not in known], frozenset(own)


def _kinds(kind: type) -> set[type]:
    """Return a type and those made from it."""
    return {kind}.union(*map(_kinds, kind.__subclasses__()))


def _states(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield what an optimizer holds of its parameters."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
