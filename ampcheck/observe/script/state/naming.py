"""What a script calls its tensors: by the variables that lead to them."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.observe.model.state import is_plain
from ampcheck.observe.source import is_user_file

if TYPE_CHECKING:
    from types import FrameType

#: How deep containers, modules and plain objects are followed from a variable.
_DEPTH = 8
#: Things looked at in all.
_MOST = 100_000


def names_of(tensors: Iterable[torch.Tensor]) -> dict[int, str]:
    """Return by identity what the running script calls some tensors; what it has no name for goes by its shape."""
    wanted = {id(tensor): f"tensor of shape {tuple(tensor.shape)}" for tensor in tensors}
    left, seen = set(wanted), set[int]()
    variables = _variables()
    wanted.update({id(value): name for name, value in variables if id(value) in left})
    # One of the loop that runs is no name where a longer one leads there.
    waiting = [(name, value, _DEPTH) for name, value in variables if id(value) not in left]
    for name, value, depth in waiting:  # which grows: what is near is named first
        if id(value) in left:
            wanted[id(value)] = name
            left.discard(id(value))
        if not left or len(waiting) > _MOST:
            break
        if depth and id(value) not in seen and not isinstance(value, (str, bytes, int, float, torch.Tensor)):
            seen.add(id(value))
            waiting += [(inner, held, depth - 1) for inner, held in _parts(name, value)]
    return wanted


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a thing holds, by its name there."""
    if isinstance(value, torch.nn.Module):
        own = value.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            yield from [(f"{name}.{key}", held) for key, held in (own.get(table) or {}).items()]
        yield from [(f"{name}.{key}", held) for key, held in own.items() if not key.startswith("_")]
    elif isinstance(value, Mapping):
        yield from [(f"{name}.{key}", held) for key, held in value.items()]
    elif type(value) in {list, tuple}:
        yield from [(f"{name}.{at}", held) for at, held in enumerate(value)]
    elif is_plain(value):
        yield from [(f"{name}.{key}", held) for key, held in vars(value).items()]


def _variables() -> list[tuple[str, Any]]:
    """Return the variables of the script that is running, the outermost first."""
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[str, Any]] = []
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            of_module = [
                (name, value) for name, value in frame.f_globals.items() if not name.startswith("__")
            ]
            found = [*of_module, *frame.f_locals.items(), *found]
        frame = frame.f_back
    return found
