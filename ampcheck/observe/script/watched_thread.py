"""The thread whose training is watched; what others train is left alone, and counted."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ampcheck.observe.script.state.sent_gradients import SentGradients
from ampcheck.observe.script.state.stale_casts import OldCasts
from ampcheck.observe.source import Spot
from ampcheck.observe.statistics.memory import instances_of

#: What is not audited beside it.
OTHER_THREADS = "steps of training in other threads"
#: Backwards of a thread from which on it trains, where no optimizer has stepped.
_BY_HAND = 8


class WatchedThread:
    """The thread that a watch began in, or the one that turns out to be the one that trains."""

    def __init__(self, moved: Callable[[], None] = lambda: None) -> None:
        """Begin in the running thread; `moved` is called where it turns out to be another, in the middle of a step."""
        self.ident, self._moved = threading.get_ident(), moved
        self.follows = False  #: whether it may turn out to be another
        self._steps: Counter[int] = Counter()  #: of others
        self.backwards: Counter[int] = Counter()  #: of others as well
        self._by_hand = False  #: no optimizer steps in the one that trains
        self._regions: dict[
            int, list[Spot]
        ] = {}  #: of others, where the regions of autocast began that each is in
        self._old_casts, self.sent = OldCasts(), SentGradients()
        self.asked = 0  #: gradients of weights that autograd.grad returned, of which no step is known

    @property
    def runs(self) -> bool:
        """Tell whether it is the one that is running."""
        return threading.get_ident() == self.ident

    @property
    def others_train(self) -> bool:
        """Tell whether it turns out that other threads train, one of which may be followed."""
        return self.follows and any(steps > 1 for steps in self._steps.values())

    def not_seen(self, backwards: int) -> dict[str, int]:
        """Return what was not seen of other threads; so many `backwards` were seen in this one."""
        others = self._steps.total() or (0 if backwards and not self._by_hand else self.backwards.total())
        return {OTHER_THREADS: others} if others else {}

    def elsewhere(self, event: str, *, idle: bool) -> bool:
        """Tell whether an event is of another thread; `idle` says that this one has not trained yet."""
        if self.runs or not _is_scripts(threading.get_ident()):
            return False
        counted = {"step_begins": self._steps, "backward": self.backwards}.get(event)
        if counted is not None:
            running = threading.get_ident()
            counted[running] += 1
            # A script may train in a thread, and do nothing of the kind in the one that it began in. It is followed
            # once: of threads that train beside each other, one is watched and the others are not. Where no
            # optimizer steps, weights may be changed by hand.
            by_hand = not self._steps and self._is_by_hand(self.backwards[running])
            if self.follows and idle and (by_hand or self._steps[running] > 1):
                self.ident, self.follows, self._by_hand = running, False, by_hand
                del self.backwards[running]
                self._moved()
                return False
        return True

    def region(self, begins_at: Spot | None) -> None:
        """Take note of a region of autocast that another thread enters, or leaves."""
        regions = self._regions.setdefault(threading.get_ident(), [])
        if begins_at is not None:
            regions.append(begins_at)
        elif regions:
            regions.pop()

    def outlasted(self, losses: Any) -> Spot | None:
        """Return where the region of another thread began whose backward goes through old casts of weights."""
        entered = self.entered_at()
        return entered if entered is not None and self._old_casts.among(losses) else None

    def entered_at(self) -> Spot | None:
        """Return where the region of autocast began that the running thread, another one, is in."""
        regions = self._regions.get(threading.get_ident())
        return regions[0] if regions else None

    def returns(self, inputs: Any, *, known: bool) -> None:
        """Take note of inputs whose gradients autograd.grad has returned; `known` where they are those of a step."""
        given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        if not known and any(isinstance(one, torch.nn.Parameter) for one in given):
            self.asked += 1

    def _is_by_hand(self, backwards: int) -> bool:
        """Tell whether so many backwards of a thread are followed by no optimizer's step: there is none."""
        asked = self.follows and backwards >= _BY_HAND and backwards & (backwards - 1) == 0
        return asked and not instances_of(torch.optim.Optimizer)


def _is_scripts(thread: int) -> bool:
    """Tell whether a thread is one that Python started: autograd has others, which run what this one asks for."""
    held = threading._active.get(thread)  # type: ignore[attr-defined]  # asking for it makes one of any thread
    return held is not None and not isinstance(held, threading._DummyThread)
