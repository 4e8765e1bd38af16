"""Tensors in half precision that no optimizer of torch's changes."""

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.statistics.memory import half_leaves, instances, readable


class Untrained(NamedTuple):
    """Tensors in half precision that no optimizer of torch's changes."""

    tensors: list[torch.Tensor]
    states: dict[int, weakref.ref[torch.Tensor]]  #: by state of another optimizer, the parameter
    stepped: dict[int, str]  #: by parameter of another optimizer, the class of that


def untrained() -> Untrained:
    """Look through memory for tensors in half precision, but for gradients."""
    found = Untrained(half_leaves(), {}, {})
    if not found.tensors:
        return found
    known = {id(grad) for tensor in found.tensors if (grad := gradient_of(tensor)) is not None}
    for optimizer in instances(*_kinds(torch.optim.Optimizer)):
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        states = {id(value): weakref.ref(parameter) for parameter, value in _states(optimizer)}
        if type(optimizer).__module__.startswith("torch."):
            known.update(states, map(id, held))
        else:
            found.states.update(states)
            found.stepped.update(dict.fromkeys(map(id, held), type(optimizer).__name__))
    return found._replace(tensors=[tensor for tensor in found.tensors if id(tensor) not in known])


def sums() -> list[torch.Tensor]:
    """Look through memory for tensors in FP32 that half precision may be added to: no weight, no gradient, no state."""
    known = {
        id(one) for optimizer in instances(*_kinds(torch.optim.Optimizer)) for _, one in _states(optimizer)
    }
    weights = instances(torch.nn.Parameter)
    known.update(id(grad) for weight in weights if (grad := gradient_of(weight)) is not None)
    wide = (one for one in instances(torch.Tensor) if one.dtype is torch.float32 and readable(one))
    mine = (one for one in wide if not (one.requires_grad or one.is_inference() or id(one) in known))
    return [one for one in mine if one._version]


def _kinds(kind: type) -> set[type]:
    """Return a type and those made from it."""
    return {kind}.union(*map(_kinds, kind.__subclasses__()))


def _states(optimizer: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield parameters with what an optimizer holds of them."""
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, torch.Tensor) and isinstance(state, dict):
            yield from ((parameter, value) for value in state.values() if isinstance(value, torch.Tensor))
