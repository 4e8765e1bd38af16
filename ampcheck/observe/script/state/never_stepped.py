"""Gradients of one backward after the other that are not finite, and that no step follows any more.

A script with a scaler of its own leaves out the steps whose gradients are not. Nothing else tells of that.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from ampcheck.observe.script.journal import Journal
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.half_averages import HalfAverages
from ampcheck.observe.script.state.naming import names_of
from ampcheck.observe.statistics.memory import half_leaves, readable
from ampcheck.values.loop import Kind

if TYPE_CHECKING:
    from ampcheck.observe.source import Spot

#: The part of all backwards from which on that is no accident.
_PART = 0.1


class NeverStepped:
    """Looks at the gradients of ever later backwards since the last step: say the 16th, the 32nd, the 64th."""

    def __init__(self, averages: HalfAverages, journal: Journal) -> None:
        self._averages, self._journal = averages, journal
        self._since = 0  #: backwards since the last step
        self._place: Spot | None = None
        self._scale = ""  #: a number in half precision that is infinite
        self._first: weakref.ref[torch.Tensor] | None = None  #: a gradient, when they were looked at first
        self._adds_up = False  #: it was there at the last look
        self._found: list[
            list[torch.Tensor]
        ] = []  #: whether each of a backward was not finite, on its device

    def asked(self, grads: Iterable[object]) -> None:
        """Take note of gradients that were asked for: it is part of a pass, as a backward is."""
        passes = self._averages.passes
        passes.backwards += 1
        if passes.backwards >= passes.begins:
            self._averages.goes_on(passes.backwards)
        if passes.backwards >= passes.many:
            self.ran(lambda: grads)

    def ran(self, grads: Callable[[], Iterable[object]]) -> bool:
        """Take note of one of many backwards; tell whether its gradients were looked at, and are not finite."""
        passes = self._averages.passes
        since = self._since = passes.backwards
        self._found = [] if since == passes.many else self._found
        self._place = self._journal.spot()
        if since.bit_count() != 1:
            return False
        held = [one for one in grads() if isinstance(one, torch.Tensor) and readable(one)]
        first = None if self._first is None or not self._found else self._first()
        self._adds_up = any(one is first for one in held)
        self._first = weakref.ref(held[0]) if held and first is None else self._first
        with unseen():
            flags = [~one.detach().isfinite().all() for one in held if one.is_floating_point()]
            self._found += [flags] if flags else []
            scales = [one for one in half_leaves() if one.numel() == 1 and bool(one.isinf())]
        self._scale = min(names_of(scales).values(), default="") if scales else ""
        return any(map(bool, flags))

    def end(self, backwards: int) -> None:
        """Tell of backwards whose gradients were never finite, if they are many of all after the last step."""
        since = self._averages.passes.backwards
        never = bool(self._found) and all(any(map(bool, flags)) for flags in self._found)
        if never and since == self._since and since > _PART * backwards:
            self._journal.note_at(
                self._place, Kind.NEVER_FINITE, name=f"{since} {self._scale}".strip(), by_hand=self._adds_up
            )
