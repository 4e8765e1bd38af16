"""Walking the tensors of a batch, whatever it is built of."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from types import SimpleNamespace
from typing import Any

import torch

#: Containers that are rebuilt from their items; their subclasses may want other arguments.
PLAIN = (list, tuple, set, frozenset)
#: Samples from which on another draw of them is another batch.
_DRAWN = 4


def tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a nested value in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple | AbstractSet):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, SimpleNamespace):
        yield from tensors(vars(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None))


def move(value: Any, device: str | torch.device) -> Any:
    """Return the value with every tensor in it on the device; containers keep their type."""
    return mapped(lambda leaf: leaf.to(device), value)


def input_shapes(batch: object) -> tuple[str, ...]:
    """Return shape and dtype of each tensor of a batch, such as "2x3x224x224 float32"."""
    return tuple(
        f"{'x'.join(map(str, t.shape)) or 'scalar'} {str(t.dtype).removeprefix('torch.')}"
        for t in tensors(batch)
    )


def mapped(to: Callable[[Any], Any], value: Any) -> Any:
    """Return the value with `to` applied to every tensor in it, and to what moves itself."""
    if isinstance(value, tuple) and hasattr(value, "_fields") and not hasattr(value, "to"):
        return type(value)(*(mapped(to, item) for item in value))
    if isinstance(value, PLAIN) and type(value) in PLAIN:
        return type(value)(mapped(to, item) for item in value)
    if isinstance(value, MutableMapping | SimpleNamespace):
        return _mapped_items(to, value)
    if isinstance(value, type | torch.nn.Module):
        return value
    if callable(getattr(value, "to", None)):  # packed sequences, graph batches and the like move themselves
        return to(value)
    return _mapped_dataclass(to, value) if dataclasses.is_dataclass(value) else value


def _mapped_items(to: Callable[[Any], Any], value: Any) -> Any:
    moved = copy.copy(value)
    items = vars(moved) if isinstance(moved, SimpleNamespace) else moved
    for key, item in list(items.items()):
        items[key] = mapped(to, item)
    return moved


def _mapped_dataclass(to: Callable[[Any], Any], value: Any) -> Any:
    moved = copy.copy(value)
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):
            object.__setattr__(moved, field.name, mapped(to, getattr(value, field.name)))  # frozen ones too
    return moved


def redrawn(batch: Any) -> Any:
    """Return a batch of the same samples drawn anew, some twice; None where it is not known what a sample is."""
    sizes = {tensor.shape[0] for tensor in tensors(batch) if tensor.dim()}
    if len(sizes) != 1 or max(sizes) < _DRAWN:
        return None
    size = sizes.pop()
    chosen = torch.randint(size, (size,), generator=torch.Generator().manual_seed(0))

    def drawn(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        return leaf.index_select(0, chosen.to(leaf.device))

    return mapped(drawn, batch)
