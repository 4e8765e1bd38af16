"""Finding the user's batches, or making one of a shape that was asked for."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.modelfinder import example_input, vocabulary
from ampcheck.targets.nested import move
from ampcheck.targets.scope import BATCH_NAMES, Scope, binds, takes
from ampcheck.targets.spec import Options

#: What a batch function that insists on a size is given.
DEFAULT_BATCH = 8
#: So many batches are drawn from a loader or generator; an endless one has to end somewhere.
DRAWN_BATCHES = 8


def find_batches(scope: Scope, model: Any, options: Options) -> tuple[list[Any], tuple[str, ...]]:
    """Return the batches on the device, and what had to be assumed.

    A list is several batches, one a step; a tuple, mapping or tensor is one batch.
    """
    named = scope.first(BATCH_NAMES)
    if named is None and options.input_shape is not None:
        return _of_shape(model, options)
    if named is None:
        raise _missing(scope, model)
    name, value = named
    if options.input_shape is not None:
        raise TargetError(
            f"the file has its own {name}, so --input cannot apply; drop one of the two", where=scope.where
        )
    value = _value(scope, name, value, options)
    batches, notes = _several(scope, name, value)
    return [move(batch, options.device) for batch in batches], notes


def find_extra(scope: Scope, name: str, options: Options) -> list[Any]:
    """Return further batches, "validation" or "warmup"; none where the file names none."""
    value = scope.names.get(name)
    if value is None:
        return []
    batches, _ = _several(scope, name, scope.call(value) if callable(value) else value)
    return [move(batch, options.device) for batch in batches]


def _value(scope: Scope, name: str, value: Any, options: Options) -> Any:
    """Return the value behind a name: a function is called, with the batch size where it takes one."""
    is_function = callable(value) and not isinstance(value, torch.Tensor | Mapping | Iterable)
    sized = is_function and takes(value, "batch_size")
    if options.batch_size is not None and not sized:
        raise TargetError(
            f"{name} does not take batch_size, so --batch-size cannot apply",
            where=scope.where,
            hint=f"def {name}(batch_size=8):\n    ...",
        )
    if not is_function:
        return value
    if options.batch_size is not None:
        return scope.call(value, batch_size=options.batch_size)
    return scope.call(value, batch_size=DEFAULT_BATCH) if sized and not binds(value) else scope.call(value)


def _several(scope: Scope, name: str, value: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Return the batches in a value."""
    notes: tuple[str, ...] = ()
    one = isinstance(value, torch.Tensor | Mapping | str | bytes) or not isinstance(value, Iterable)
    if (one and not isinstance(value, torch.utils.data.DataLoader)) or (
        isinstance(value, tuple) and name != "batches"
    ):
        return [value], ()
    batches = list(value) if isinstance(value, list | tuple) else list(itertools.islice(value, DRAWN_BATCHES))
    if not isinstance(value, list | tuple):
        notes = (f"the first {len(batches)} batches of {name} are used",)
    if not batches:
        raise TargetError(f"expected at least one batch in {name}, got none", where=scope.where)
    dtypes = {batch.dtype for batch in batches if isinstance(batch, torch.Tensor)}
    if name != "batches" and len(dtypes) > 1:
        raise TargetError(
            f"{name} is a list, which means several batches, but holds tensors of different kinds; "
            "write one batch as a tuple",
            where=scope.where,
            hint=f"{name} = tuple({name})",
        )
    if len(batches) > 1 and isinstance(value, list) and dtypes:
        notes = (f"{name} is a list: {len(batches)} batches, one a step (a tuple is one batch)",)
    return batches, notes


def _of_shape(model: Any, options: Options) -> tuple[list[Any], tuple[str, ...]]:
    """Return a random batch of the shape that was asked for: indices for an embedding, else numbers."""
    shape = options.input_shape or ()
    shape = shape if options.batch_size is None else (options.batch_size, *shape)
    known = vocabulary(model)
    batch = torch.randn(shape) if known is None else torch.randint(0, known, shape)
    kind = "normal random numbers" if known is None else f"random indices below {known}"
    return [move(batch, options.device)], (f"the input is {kind} of shape {'x'.join(map(str, shape))}",)


def _missing(scope: Scope, model: Any) -> TargetError:
    example = example_input(model)
    return TargetError(
        "no batch found; define batch, or a function making one, or pass --input SHAPE",
        where=scope.where,
        hint=f"def batch():\n    return {example}, torch.randint(0, 10, (8,))",
    )
