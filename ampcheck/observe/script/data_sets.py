"""Numbers that a data set holds in half precision and casts up: what rounding them has lost is in no batch."""

import functools
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ampcheck.observe.model.modules import tensors_in
from ampcheck.observe.patches import Original, Patches
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.statistics.memory import readable
from ampcheck.observe.statistics.units import GRIDS, is_grid

#: What is not audited of them, behind their name.
ROUNDED_DATA = ", half-precision numbers of a data set: what rounding them has lost is not known"
#: How deep a data set is looked into, how many parts of each container, and how many numbers of a part.
_DEPTH, _PARTS, _NUMBERS = 4, 16, 4096


def hear_loaders(patches: Patches, watcher: Any) -> None:
    """Let a watcher hear of the first batch of each pass over a data set."""
    patches.put(_BaseDataLoaderIter, "__next__", functools.partial(_first_told, watcher))


def _first_told(watcher: Any, original: Original, self: Any) -> Any:
    batch = original(self)
    if self._num_yielded == 1 and torch.is_grad_enabled():
        watcher.loaded(self._dataset, batch)
    return batch


def cast_up(data: Any, batch: Any) -> list[str]:
    """Return what a data set holds in half precision, by name, where its batch holds nothing of the kind."""
    with unseen():
        given = [tensor for _, tensor in tensors_in(batch, "")]
        wide = any(tensor.is_floating_point() for tensor in given)
        if not wide or any(tensor.dtype in GRIDS for tensor in given):
            return []  # what stays in half precision is seen in the step
        return [
            name
            for name, held in _held(type(data).__name__, data, _DEPTH)
            if not is_grid(held, GRIDS[held.dtype])
        ]


def _held(name: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield some of the numbers that a thing holds in half precision, by name."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Tensor):
        if value.dtype in GRIDS and readable(value):
            step = max(1, value.numel() // _NUMBERS)
            yield name, value.take(torch.arange(0, value.numel(), step, device=value.device))
    elif numpy is not None and isinstance(value, numpy.ndarray):
        if value.dtype == numpy.float16:
            on_disk = isinstance(value, numpy.memmap)  # numbers all over it would have to be fetched
            some = slice(_NUMBERS) if on_disk else slice(None, None, max(1, value.size // _NUMBERS))
            yield name, torch.tensor(value.flat[some].tolist(), dtype=torch.float16)
    elif depth:
        for part, held in islice(_parts(value), _PARTS):
            yield from _held(f"{name}{part}", held, depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return ((f".{key}", held) for key, held in value.items())
    if type(value) in {list, tuple}:
        return ((f"[{at}]", held) for at, held in enumerate(value))
    if hasattr(type(value), "__getitem__") or hasattr(type(value), "__iter__"):
        own = {} if isinstance(value, torch.nn.Module) else getattr(value, "__dict__", {})
        return ((f".{key}", held) for key, held in own.items())
    return iter(())
