"""States that a script makes anew from what they were, where another one writes them in place."""

import weakref
from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.script.state.half_judged import State
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable, tensors_of

#: A tensor that may take the place of a state, the line, and whether it was computed from that.
_Made = tuple[weakref.ref[torch.Tensor], tuple[str, int], bool]


class Remade:
    """What is computed from states and has their shape: one of it takes a state's place where that is gone."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._from: dict[int, tuple[StorageWeakRef, State]] = {}  #: by storage
        self._made: dict[int, list[_Made]] = {}  #: by state
        self._storages: set[int] = set()  #: of what was made in half precision
        #: New states whose place nothing has taken, and how far beside them they are followed.
        self._new: dict[int, tuple[State, float]] = {}

    def begins(self, state: State, beside: float) -> None:
        """Take note of a state that is followed from that far `beside` it."""
        if state.perhaps:
            self._new[id(state)] = state, beside

    def next_new(self, shape: torch.Size) -> tuple[State, float] | None:
        """Return a new state of some shape of which nothing is there: what is cast may be what it will be next.

        What that is computed from was there before the state was followed.
        """
        new = (one for one in self._new.values() if one[0].first.shape == shape)
        return next((one for one in new if not self._alive(one[0])), None)

    def note(self, state: State | None, out: object, *, known: bool = True) -> None:
        """Take note of what an operation has made of a state, or of what was made of it before, as far as `known`."""
        if state is None:
            return
        for tensor in tensors_of((out,)):
            if tensor.shape == state.first.shape and readable(tensor):
                storage = tensor.untyped_storage()
                self._from[storage._cdata] = StorageWeakRef(storage), state
                if tensor.dtype is state.first.dtype:
                    self._storages.add(storage._cdata)
                    self._made.setdefault(id(state), []).append((weakref.ref(tensor), running_line(), known))

    def origin(self, tensors: Iterable[torch.Tensor]) -> State | None:
        """Return the state that the first of some tensors was made of that was."""
        found = (self._of(tensor.untyped_storage()._cdata) for tensor in tensors if readable(tensor))
        return next((state for state in found if state is not None), None)

    def _of(self, storage: int) -> State | None:
        held, state = self._from.get(storage, (None, None))
        return None if held is None or held.expired() else state

    def holds(self, storage: int) -> bool:
        """Tell whether what lies in a storage may take the place of a state."""
        return storage in self._storages

    def takes_over(self, state: State) -> torch.Tensor | None:
        """Return what has taken the place of a state that is gone, and follow that as the state.

        Where it is not known to be made of the state, it is followed from there, and that is no change.
        """
        made = self._alive(state)
        if not made:
            return None
        self._new.pop(id(state), None)
        first = state.first.float()
        tensor, line, known = min(made, key=lambda one: float((one[0].detach().float() - first).norm()))
        if known:
            state.writes += 1
            state.place = state.place if state.place[1] else line
        else:
            state.first = tensor.detach().clone()
        state.tensor, state.version = weakref.ref(tensor), tensor._version - state.writes
        return tensor

    def _alive(self, state: State) -> list[tuple[torch.Tensor, tuple[str, int], bool]]:
        """Return what was made of a state and is still there."""
        made = self._made.get(id(state), ())
        return [(tensor, line, known) for one, line, known in made if (tensor := one()) is not None]

    def step_ends(self) -> None:
        """Forget what was made in a step, and what is gone."""
        self._from = {key: one for key, one in list(self._from.items()) if not one[0].expired()}
        self._made.clear()
        self._storages.clear()
