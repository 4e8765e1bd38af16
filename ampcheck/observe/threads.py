"""Work in threads of the program's own: its nodes bear numbers that the recorded thread gives to other nodes.

Autograd counts nodes by thread, and a node does not say which thread made it. So while a step is recorded every
thread tells which numbers it used, and what bears one of them is attributed to nobody.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import thread as pool
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ampcheck.observe.lanes import Lanes

_sequence = torch._C._autograd._get_sequence_nr
#: Where a thread, or a job of a pool of threads, begins and ends.
_BEGINNINGS: tuple[tuple[Any, str], ...] = ((threading.Thread, "_bootstrap_inner"), (pool._WorkItem, "run"))


#: What is not audited of them.
THREADS = "operations in threads of the model's own"


class OtherThreads:
    """The numbers that other threads gave to nodes while a step was recorded."""

    def __init__(self, on_step: Callable[[], None]) -> None:
        """Begin with none; `on_step` hears of a backward that is about to run nodes of several threads."""
        self._on_step = weakref.WeakMethod(on_step)  # a recorder goes with its last name
        self.lanes: Lanes | None = None  #: where threads are followed
        self.ranges: list[tuple[int, int]] = []
        self._replaced = ExitStack()

    @property
    def nodes(self) -> int:
        """Return how many nodes other threads made."""
        return sum(last - first for first, last in self.ranges)

    def __contains__(self, number: int) -> bool:
        """Tell whether another thread gave this number to a node."""
        return any(first <= number < last for first, last in self.ranges)

    def listen(self) -> None:
        """Begin to hear of threads and jobs."""
        if self.lanes is not None:
            self.lanes.open = True
        for owner, name in _BEGINNINGS:
            self._replace(owner, name, self._counted(vars(owner)[name]))
        engine = vars(torch.autograd)["_engine_run_backward"]
        self._replace(torch.autograd, "_engine_run_backward", self._told_first(engine))

    def stop_listening(self) -> None:
        """Stop hearing of them."""
        if self.lanes is not None:
            self.lanes.close()
        self._replaced.close()

    def disown(self, nodes: Any, first: int, lost: Any) -> None:
        """Attribute to `lost` the nodes, from the number `first` on, whose number another thread has used too."""
        known = [nodes.get(number) for number in range(first, nodes.next)]
        made = [lost if held is None or at in self else held for at, held in enumerate(known, first)]
        # In one call of C's, in which no other thread runs.
        after = map(nodes.made, range(first + 1, first + 1 + len(made)), made)
        deque(chain(map(nodes.begin, (first,)), after), maxlen=0)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._replaced.callback(setattr, owner, name, vars(owner)[name])
        setattr(owner, name, value)

    def _told_first(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if self.lanes is not None:
                with self.lanes.turn() as mine:
                    if mine:
                        self.lanes.reads(self.lanes.running.get(threading.get_ident()), args[:1])
            on_step = self._on_step() if self.ranges else None
            if on_step is not None:
                on_step()
            return original(*args, **kwargs)

        return run_backward

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.lanes is not None and self.lanes.holds(args[0]):
                return original(*args, **kwargs)
            lane = None if self.lanes is None else self.lanes.begins()
            if lane is not None:
                with lane:
                    return original(*args, **kwargs)
            first = _sequence()
            try:
                return original(*args, **kwargs)
            finally:
                if _sequence() > first:
                    self.ranges.append((first, _sequence()))

        return counted
