"""Which line of the forward each node of autograd's graph comes from."""

from typing import Any

import torch


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
