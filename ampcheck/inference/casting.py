"""Casting a model as `.to(dtype)` does, with chosen modules left in FP32."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.observe.model.cast_weights import cast, outermost, state
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.promote import in_fp32
from ampcheck.targets.nested import mapped, tensors

#: Bytes of a number in half precision.
_HALF = 2


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is run: in FP32, under autocast, or cast itself."""

    dtype: torch.dtype | None = None  #: None: FP32
    weights: bool = False  #: cast the model and its inputs, instead of running it under autocast
    keep: tuple[str, ...] = ()  #: modules left in FP32
    promote: bool = False  #: what these give stays in FP32 instead of being cast back
    keep_inputs: tuple[str, ...] = ()  #: inputs that are not cast
    lines: tuple[tuple[str, int], ...] = ()  #: of functional code that runs in FP32
    state: bool = False  #: what is carried from call to call stays in FP32


@contextmanager
def as_asked(model: Any, way: Way) -> Iterator[None]:
    """Have a model in the way asked for; whoever calls this puts the tensors back."""
    back = way.dtype if way.weights and not way.promote else None
    if way.dtype is not None and way.weights:
        cast(model, way.dtype, way.keep)
    # A part of a kept module hands its results to FP32, so only the outermost ones cast theirs back.
    with in_fp32(model, outermost(way.keep), way.lines, back):
        yield


@contextmanager
def restored(before: Snapshot) -> Iterator[None]:
    """Put back at the end what a snapshot holds."""
    try:
        yield
    finally:
        before.restore()


def named_state(model: Any) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yield each floating-point parameter and buffer by its qualified name, and whether it is a buffer."""
    return ((f"{path}.{name}".lstrip("."), tensor, buffer) for path, name, tensor, buffer in state(model))


def cast_inputs(
    batch: Any,
    dtype: torch.dtype,
    keep: Sequence[str] = (),
    names: Sequence[str] = (),
    *,
    halves: bool = False,
) -> Any:
    """Return a batch with its floating-point tensors cast, but for inputs that are kept; the rest as it is.

    With `halves` only what is in half precision is: the others are as their script wants them.
    """

    def to(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if floating and (not halves or leaf.dtype.itemsize == _HALF) else leaf

    return each_input(batch, to, keep, names)


def each_input(
    batch: Any, change: Callable[[Any], Any], keep: Sequence[str] = (), names: Sequence[str] = ()
) -> Any:
    """Return a batch with the tensors of its inputs changed, those of `keep` left out."""
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)
        for key, item in batch.items():
            moved[key] = item if str(key) in keep else mapped(change, item)
        return moved
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return tuple(
            item if _named(at, names) in keep else mapped(change, item) for at, item in enumerate(batch)
        )
    return batch if _named(0, names) in keep else mapped(change, batch)


def _named(at: int, names: Sequence[str]) -> str:
    return names[at] if at < len(names) else str(at)


def inputs_of(batch: Any, names: Sequence[str] = ()) -> list[str]:
    """Return the names of the inputs of a batch that hold floating-point tensors."""
    parts = named_inputs(batch, names).items()
    return [name for name, item in parts if any(leaf.is_floating_point() for leaf in tensors(item))]


def named_inputs(batch: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the inputs of a batch by name."""
    if isinstance(batch, Mapping):
        return {str(key): item for key, item in batch.items()}
    items = batch if isinstance(batch, tuple) and not hasattr(batch, "_fields") else (batch,)
    return {_named(at, names): item for at, item in enumerate(items)}
