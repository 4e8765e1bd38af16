"""What operations are attributed to: lines of the program, each in the module that runs there.

And which of them each node of autograd's graph comes from.
"""

from typing import Any

import torch

from ampcheck.observe.source import SourceFinder, Spot, frames_match
from ampcheck.observe.tally import Origin
from ampcheck.values.trace import Phase

#: Functions of torch.utils.checkpoint that run a forward again inside the backward.
_CHECKPOINT = {"utils/checkpoint.py": frozenset({"backward", "unpack_hook"})}


class Origins:
    """Makes each origin once."""

    def __init__(self, tracker: Any, where: Any, source: SourceFinder) -> None:
        """Begin with none; `tracker` names modules, and `where` tells which one is running."""
        self._tracker, self._where, self._source = tracker, where, source
        self._made: dict[Any, Origin] = {}
        self._ran: set[Spot | None] = set()  #: lines of the forward

    def of(self, spot: Spot | None, phase: Phase) -> Origin:
        """Return the origin at the running module and a line."""
        key = (self._where.current, spot, phase)
        origin = self._made.get(key)
        if origin is None:
            module = self._tracker.path(self._where.current)
            origin = self._made[key] = Origin(module, phase, *self._source.line(spot))
            if phase is Phase.FORWARD and spot is not None:
                self._ran.add(spot)
        return origin

    def runs_again(self) -> bool:
        """Tell whether a backward that makes a graph runs a line of the forward again, as checkpoints do."""
        return frames_match(_CHECKPOINT) or self._source.spot_in_backward() in self._ran

    def again(self, around: Origin, spot: Spot | None) -> Origin:
        """Return the origin of a line that a backward runs again outside of any module call.

        `around` is where the running node comes from: the line's module is that one or lies above it.
        """
        base, phase = around.module, Phase.RECOMPUTE
        key = (base, spot, phase)
        origin = self._made.get(key)
        if origin is None:
            before = (spot, Phase.FORWARD)
            ran = {
                one.module for key, one in self._made.items() if isinstance(key, tuple) and key[1:] == before
            }
            above = [module for module in ran if f"{base}.".startswith(f"{module}." if module else "")]
            module = max(above, key=len, default=base)
            origin = self._made[key] = Origin(module, phase, *self._source.line(spot))
        return origin

    def within(self, made: Origin, spot: Spot | None) -> Origin:
        """Return the origin of a line in a backward that the program has written; `made` is its forward's."""
        if spot is None or made is self._made.get(None):
            return made
        key = (made.module, spot, Phase.BACKWARD)
        origin = self._made.get(key)
        if origin is None:
            origin = self._made[key] = Origin(made.module, Phase.BACKWARD, *self._source.line(spot))
        return origin

    def lost(self) -> Origin:
        """Return the origin of backward operations whose forward was not recorded."""
        return self._made.setdefault(None, Origin("", Phase.BACKWARD, "", 0))

    @property
    def any_lost(self) -> bool:
        """Whether there was an operation of that kind."""
        return None in self._made

    def door(self, module: int) -> Origin:
        """Return the origin of what enters and leaves a module."""
        origin = self._made.get(module)
        if origin is None:
            origin = self._made[module] = Origin(self._tracker.path(module), Phase.FORWARD, "", 0)
        return origin


class Nodes:
    """Origins by the numbers that autograd gives its nodes, one after the other."""

    __slots__ = ("_origins", "next")

    def __init__(self) -> None:
        self._origins: dict[int, Any] = {}
        self.next = 0  #: the number of the next node

    def begin(self, sequence: int) -> None:
        """Forget all nodes; the next one has this number."""
        self._origins.clear()
        self.next = sequence

    def get(self, number: int) -> Any:
        """Return the origin of a node, None for one that was not recorded."""
        return self._origins.get(number)

    def made(self, sequence: int, origin: Any) -> None:
        """Note that an operation made all nodes up to this number."""
        while self.next < sequence:
            self._origins[self.next] = origin
            self.next += 1


def running_number() -> int:
    """Return the number of the node of the graph that runs, -1 where none does."""
    node: Any = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())
