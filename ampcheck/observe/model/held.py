"""What a step leaves behind: buffers, frozen parameters and other tensors that a model or a loss holds on to."""

from collections import deque
from collections.abc import Iterator, Mapping
from math import hypot
from typing import Any, NamedTuple

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.state import MODULE_TABLES, is_plain
from ampcheck.observe.model.structure import in_table, is_lazy, named_modules
from ampcheck.values.outcome import HARM_ERROR

#: How deep containers and plain objects are followed from an attribute.
_DEPTH = 4
#: Tensors up to this size are compared by their numbers where nothing says that they were written.
_SMALL = 1 << 20
#: Elements that are compared at a time.
_PART = 1 << 22


class Held(NamedTuple):
    """A tensor that outlives the step."""

    tensor: torch.Tensor
    saved: bool  #: it is part of the model's state dictionary


def held(model: Any, *others: Any) -> dict[str, Held]:
    """Return by name what a model and other things hold, but for parameters that are trained."""
    found: dict[str, Held] = {}
    for value in (model, *others):
        for path, module in named_modules(value):
            for name, one in _of_module(module):
                found.setdefault(f"{path}.{name}".lstrip("."), one)
        if value is not model and is_plain(value):
            for name, tensor in _tensors(vars(value), type(value).__name__, _DEPTH):
                found.setdefault(name, Held(tensor, saved=False))
    return {name: one for name, one in found.items() if _compares(one.tensor)}


def _of_module(module: torch.nn.Module) -> Iterator[tuple[str, Held]]:
    own = module.__dict__
    passing = own.get("_non_persistent_buffers_set") or ()
    for name, buffer in in_table(module, "_buffers"):
        yield name, Held(buffer, saved=name not in passing)
    for name, parameter in in_table(module, "_parameters"):
        if not parameter.requires_grad:
            yield name, Held(parameter, saved=True)
    for name, value in own.items():
        if name not in MODULE_TABLES:
            yield from ((found, Held(tensor, saved=False)) for found, tensor in _tensors(value, name, _DEPTH))


def _tensors(value: Any, name: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and not isinstance(value, (torch.nn.Module, str, bytes)):
        parts: Any = ()
        if isinstance(value, Mapping):
            parts = ((f"{name}.{key}", inner) for key, inner in value.items())
        elif isinstance(value, (list, tuple, deque)):
            parts = ((f"{name}[{at}]", inner) for at, inner in enumerate(value))
        elif is_plain(value):
            parts = ((f"{name}.{key}", inner) for key, inner in vars(value).items())
        for part, inner in list(parts):
            yield from _tensors(inner, part, depth - 1)


def _compares(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
    strided = plain and tensor.layout is torch.strided and not tensor.is_meta and not is_lazy(tensor)
    return strided and tensor.is_floating_point() and not tensor.requires_grad


def versions(state: Mapping[str, Held]) -> dict[str, tuple[int, int]]:
    """Return what tells whether tensors have been written since, or others stand in their place."""
    return {name: (id(one.tensor), one.tensor._version) for name, one in state.items()}


def written(state: Mapping[str, Held], before: Mapping[str, tuple[int, int]]) -> dict[str, Held]:
    """Return what may have been written since `versions`."""
    return {
        name: one
        for name, one in state.items()
        if one.tensor.numel() <= _SMALL or before.get(name) != (id(one.tensor), one.tensor._version)
    }


def copied(state: Mapping[str, Held]) -> dict[str, tuple[torch.Tensor, bool]]:
    """Return copies of the numbers, in FP32 where they are held in less, and whether each is saved."""
    return {
        name: (
            one.tensor.detach().float() if one.tensor.dtype in HALVES else one.tensor.detach().clone(),
            one.saved,
        )
        for name, one in state.items()
    }


def spoilt(reference: Mapping[str, tuple[torch.Tensor, bool]], state: Mapping[str, Held]) -> dict[str, float]:
    """Return by name how far off the tensors are that are off by more than what is called harm."""
    errors = {name: apart(copy, state[name].tensor) for name, (copy, _) in reference.items() if name in state}
    return {name: error for name, error in errors.items() if error > HARM_ERROR}


def apart(reference: torch.Tensor, low: torch.Tensor) -> float:
    """Return by how much a tensor is off, relative to all of it; infinite where it holds a new inf or NaN."""
    if reference.shape != low.shape or not reference.numel():
        return 0.0
    whole, off = 0.0, 0.0
    pairs = zip(_parts(reference), _parts(low), strict=True)
    for wide, lowered in ((one.double(), other.double()) for one, other in pairs):
        known = wide.isfinite()
        if bool((known & ~lowered.isfinite()).any()):
            return float("inf")
        before, after = wide.where(known, 0.0), lowered.where(known, 0.0)
        whole = hypot(whole, float(torch.linalg.vector_norm(before)))
        off = hypot(off, float(torch.linalg.vector_norm(after - before)))
    return off / whole if whole else (1.0 if off else 0.0)


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a tensor in parts: what computes with a buffer of a gigabyte would take many times as much at once."""
    return tuple(tensor.detach().reshape(-1).split(_PART))
