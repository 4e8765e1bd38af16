"""What a script calls its tensors: by the variables that lead to them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from math import isnan
from typing import Any

import torch

from ampcheck.observe.model.state import is_plain
from ampcheck.observe.source import frames, is_user_file, locals_of
from ampcheck.observe.statistics.memory import readable

#: From a parameter to its layer and its full name.
Named = Callable[[torch.Tensor], tuple[str, str]]
#: How deep containers, modules and plain objects are followed from a variable.
_DEPTH = 8
#: Things from which on nothing is looked into any more.
_MOST = 100_000
#: Things of one container that are looked at.
_EACH = 10_000
#: Begins the name of what no variable leads to.
NAMELESS = "tensor of shape"


def names_of(tensors: Iterable[torch.Tensor], key: Callable[[torch.Tensor], int] = id) -> dict[int, str]:
    """Return by `key` what the running script calls some tensors; what it has no name for goes by its shape."""
    wanted = {key(tensor): f"{NAMELESS} {tuple(tensor.shape)}" for tensor in tensors}
    left = set(wanted)
    variables = _variables()

    def known(value: Any) -> int | None:
        place = key(value) if isinstance(value, torch.Tensor) else None
        return place if place in left else None

    wanted.update({place: name for name, value in variables if (place := known(value)) is not None})
    # One of the loop that runs is no name where a longer one leads there.
    for name, value in _reached((name, value) for name, value in variables if known(value) is None):
        if (place := known(value)) is not None:
            wanted[place] = name
            left.discard(place)
        if not left:
            break
    return wanted


def not_a_number() -> list[str]:
    """Return what the running script calls its numbers, not tensors, that are NaN: the variables and what they hold."""
    return [name for name, value in _reached(_variables()) if type(value) is float and isnan(value)]


def _reached(variables: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield variables and what they hold, by name."""
    seen = set[int]()
    waiting = [(name, value, _DEPTH) for name, value in variables]
    for name, value, depth in waiting:  # which grows: what is near is named first
        yield name, value
        if (
            len(waiting) < _MOST
            and depth
            and id(value) not in seen
            and not isinstance(value, (str, bytes, int, float, torch.Tensor))
        ):
            seen.add(id(value))
            waiting += [(inner, held, depth - 1) for inner, held in islice(_parts(name, value), _EACH)]


def called(tensor: torch.Tensor) -> str:
    """Return what the script calls a tensor, or what it is a view of."""
    with torch._C.DisableTorchFunction():
        (name,) = names_of([tensor], memory_of).values()
    return name


def memory_of(tensor: torch.Tensor) -> int:
    """Return what tells apart where tensors are kept."""
    return tensor.untyped_storage()._cdata if readable(tensor) else id(tensor)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a thing holds, by its name there, as it is at one moment: other threads may change it."""
    if isinstance(value, torch.nn.Module):
        own = value.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            yield from [(f"{name}.{key}", held) for key, held in [*(own.get(table) or {}).items()]]
        yield from [(f"{name}.{key}", held) for key, held in [*own.items()] if not key.startswith("_")]
    elif isinstance(value, torch.optim.Optimizer):
        held = [state for state in [*value.state.values()] if isinstance(state, Mapping)]
        kind = type(value).__name__
        yield from [(f"{kind}.state.{key}", one) for state in held for key, one in [*state.items()]]
    elif isinstance(value, Mapping):
        yield from [(f"{name}.{_word(key)}", held) for key, held in [*value.items()]]
    elif type(value) in {list, tuple}:
        yield from [(f"{name}.{at}", held) for at, held in enumerate([*value])]
    elif is_plain(value):
        yield from [(f"{name}.{key}", held) for key, held in [*vars(value).items()]]


def _word(key: Any) -> Any:
    """Return what a key is called: its class where it is no name or number."""
    return key if isinstance(key, (str, int, tuple)) else type(key).__name__


def _variables() -> list[tuple[str, Any]]:
    """Return the variables of the script that is running, the outermost first."""
    found: list[tuple[str, Any]] = []
    for frame in frames():
        if is_user_file(frame.f_code.co_filename):
            of_module = [item for item in [*frame.f_globals.items()] if not item[0].startswith("__")]
            found = [*of_module, *locals_of(frame).items(), *found]
    return found
