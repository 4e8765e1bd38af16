"""Casts of weights that autocast has kept over an optimizer's step: a forward computes with the weights of before.

Autocast keeps the cast of each weight until its outermost region ends. Its cache cannot be read, but a cast knows by
its node which weight it was made of.
"""

from typing import Any

import torch

from ampcheck.observe import modes
from ampcheck.observe.dtypes import HALVES

_CAST = "ToCopyBackward0"


class StaleCasts:
    """Looks at the casts of weights that a recorded step uses."""

    def __init__(self, first_node: int) -> None:
        """Begin with none; nodes from this number on are the step's own."""
        self._first = first_node
        self._found = False
        self._versions: dict[int, int] = {}  #: by cast, its weight's when that was looked at last

    def among(self, args: tuple[Any, ...]) -> torch.Tensor | None:
        """Return the weight, the first one, whose cast is among some arguments and holds other numbers by now."""
        for arg in () if self._found else args:
            if isinstance(arg, torch.Tensor) and arg.dtype in HALVES and arg.requires_grad:
                weight = _weight(arg)
                if weight is not None and self._is_stale(arg, weight):
                    self._found = True
                    return weight
        return None

    def _is_stale(self, cast: torch.Tensor, weight: torch.Tensor) -> bool:
        before = self._versions.get(id(cast))
        self._versions[id(cast)] = weight._version
        own = cast.grad_fn is not None and cast.grad_fn._sequence_nr() >= self._first
        if before == weight._version or (own and before is None):
            return False
        return _differ(weight, cast)


@modes.unseen
def _differ(weight: torch.Tensor, cast: torch.Tensor) -> bool:
    return not torch.equal(weight.detach().to(cast.dtype), cast.detach())


def _weight(cast: torch.Tensor) -> torch.Tensor | None:
    """Return the leaf that a tensor is the cast of."""
    node: Any = cast.grad_fn
    if node is None or node.name() != _CAST:
        return None
    weight = getattr(node.next_functions[0][0], "variable", None)
    return weight if isinstance(weight, torch.Tensor) and weight.shape == cast.shape else None
