"""Tensors in half precision that a script changes beside its training, as it does with an average of the weights.

No step that is recorded holds these changes. A tensor counts how often it was written in place; so what was written
in every step, and is no part of an optimizer, is found when the script has ended.
"""

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ampcheck.observe.script.recording import unseen

#: Steps of a script from which on what is written in all of them stands out.
FEW_STEPS = 4
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_HALF = frozenset({torch.float16, torch.bfloat16})


class HalfAverages:
    """Compares how often tensors in half precision were written, before a script and after it."""

    def __init__(self) -> None:
        """Begin with what is there already."""
        with unseen():
            self._before = {
                id(tensor): tensor._version for tensor in _leaves(gc.get_objects()) if tensor.dtype in _HALF
            }
        #: How many there are of each dtype that were written in every step, and their elements together.
        self.found: dict[str, tuple[int, int]] = {}

    def end(self, steps: int, models: Iterable[torch.nn.Module]) -> None:
        """Look at what was written since, but for what optimizers change and what the forward of a model does."""
        if steps < FEW_STEPS or (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return  # between ranks, weights travel in buffers in half precision
        with unseen():
            self._look(steps, models)

    def _look(self, steps: int, models: Iterable[torch.nn.Module]) -> None:
        objects = gc.get_objects()
        tensors = list(_leaves(objects))
        known = {id(tensor.grad) for tensor in tensors if tensor.grad is not None}
        known.update(id(buffer) for model in models for buffer in model.buffers())
        # A process may hold millions of objects: their types are few.
        kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.optim.Optimizer)}
        for optimizer in [one for one in objects if type(one) in kinds] if kinds else ():
            known.update(map(id, _of_optimizer(optimizer)))
        for tensor in tensors:
            written = tensor._version - self._before.get(id(tensor), 0)
            if tensor.dtype in _HALF and id(tensor) not in known and written >= steps:
                dtype = str(tensor.dtype).removeprefix("torch.")
                number, elements = self.found.get(dtype, (0, 0))
                self.found[dtype] = number + 1, elements + tensor.numel()


def _leaves(objects: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among objects that nothing computes."""
    return (one for one in objects if type(one) in _PLAIN and not one.is_inference() and _is_leaf(one))


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view that autograd lost track of; what it is a view of is there as well
        return False


def _of_optimizer(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield what an optimizer changes: its parameters, and its state of each."""
    for group in optimizer.param_groups:
        yield from group["params"]
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
