"""Which operations are a model's, beside states that are followed, and which fill its weights."""

import torch

from ampcheck.observe.execution import Args
from ampcheck.observe.reference.effects import Effects
from ampcheck.observe.script.state.storages import is_whole
from ampcheck.observe.statistics.memory import tensors_of

#: Operations whose results are no state any more: what they cost, and what enters them, is the model's.
_PRODUCTS = frozenset("mm addmm bmm baddbmm mv dot convolution linear native_layer_norm embedding".split())
#: Operations that put weights together, as one vector of them all: what is read from that is no model's.
_COPIES = frozenset({"cat", "stack", "clone"})


def fills(rule: Effects, tensor: torch.Tensor) -> bool:
    """Tell whether an operation gives numbers to a weight, which is trained from there."""
    return (
        rule.name == "copy_" and tensor.dtype is torch.float32 and tensor.requires_grad and is_whole(tensor)
    )


def is_models(rule: Effects, args: Args) -> bool:
    """Tell whether an operation is part of a model's computing rather than of a change to a state."""
    if rule.name in _PRODUCTS or rule.name.startswith("_scaled_dot_product"):
        return True
    if rule.name in _COPIES:
        return False
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_of(args))
