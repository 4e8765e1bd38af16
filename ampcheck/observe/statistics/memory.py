"""Which tensors can be read as they lie in memory."""

import gc
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, starmap
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.native import NATIVE

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_transformed = torch._C._functorch.is_functorch_wrapped_tensor


def readable(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is plain memory on this device."""
    return (
        (type(tensor) in _PLAIN or _hears_only(type(tensor)))
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and not _transformed(tensor)
    )


def _hears_only(kind: type) -> bool:
    """Tell whether a subclass is memory as any other: it hears of functions, and takes no operation apart."""
    return getattr(kind, "__torch_dispatch__", None) is torch._C._disabled_torch_dispatch_impl


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of some arguments or results."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)


def holds_low(values: Any) -> bool:
    """Tell whether there is half precision among arguments or results."""
    return any(tensor.dtype in HALVES for tensor in tensors_of(values))


def version_of(tensor: torch.Tensor | None) -> int:
    """Return what counts the writes to a tensor; -1 where there is none, or nothing counts them."""
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def instances(*kinds: type) -> list[Any]:
    """Return the objects of just these types: they refer to them, and looking at all objects takes twice as long."""
    found = [one for one in _of_types(gc.get_referrers, kinds, kinds) if type(one) in kinds]
    if torch.Tensor in kinds or torch.nn.Parameter in kinds:
        try:
            for one in found:
                _ = one.dtype  # one that is about to go has none any more
        except RuntimeError:
            return [*filter(_is_whole, found)]
    return found


def _is_whole(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is more than a name in Python."""
    try:
        return tensor.dtype is not None
    except RuntimeError:
        return False


def instances_of(kind: type) -> list[Any]:
    """Return the objects of a type, and of all types that are made of it."""
    return _of_types(gc.get_objects, (), (kind,))


def _of_types(
    listed: Callable[..., list[Any]], given: tuple[type, ...], kinds: tuple[type, ...]
) -> list[Any]:
    """Return what a call lists, of some types.

    The rest must be let go before another thread runs: it may list a tuple that a thread is still filling, and breaks
    that thread if it holds it.
    """
    if NATIVE is not None:
        found: list[Any] = NATIVE.of_types(listed, given, kinds)
        return found
    kept: list[Any] = []
    with warnings.catch_warnings(action="ignore"):  # some objects warn when they are asked what they are
        for kind in kinds:  # no step within this line is Python's
            kept += filter(
                partial(type.__instancecheck__, kind), chain.from_iterable(starmap(listed, [given]))
            )
    return kept


def half_leaves() -> list[torch.Tensor]:
    """Return the tensors in half precision that nothing computes."""
    tensors = instances(torch.Tensor, torch.nn.Parameter)
    return [one for one in tensors if one.dtype in HALVES and not one.is_inference() and _is_leaf(one)]


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view that autograd lost track of; what it is a view of is there as well
        return False
