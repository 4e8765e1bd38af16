"""What a script trains without calling a module that holds it: through `.forward`, or as bare tensors.

A call is what a recording begins with and what names its parts. Where there is none, the modules are looked for in
memory and the tensors among the script's variables.
"""

import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from ampcheck.observe.model.structure import named_modules, own_parameters
from ampcheck.observe.script.roots import name_in_script
from ampcheck.observe.script.state.naming import names_of
from ampcheck.observe.source import locals_of, script_frames
from ampcheck.observe.statistics.memory import instances_of

_TABLES = (dict, list, tuple)


class Uncalled:
    """Parameters that no module was called with, and the modules that hold them."""

    def __init__(self) -> None:
        self._modules: list[tuple[weakref.ref[torch.nn.Module], str]] = []
        #: By identity: the tensor, the path of what holds it and its name there.
        self._bare: dict[int, tuple[weakref.ref[torch.Tensor], str, str]] = {}

    def look_for(self, parameters: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, str, str]]:
        """Yield parameters with the path of what holds them and their name there."""
        wanted = {id(parameter): parameter for parameter in parameters}
        for module in _holders(wanted):
            name = name_in_script(module)
            self._modules.append((weakref.ref(module), name))
            for path, part in named_modules(module):
                for own, parameter in own_parameters(part):
                    if wanted.pop(id(parameter), None) is not None:
                        yield parameter, f"{name}.{path}" if path else name, own
        for parameter, path, name in _among_variables(wanted):
            self._bare[id(parameter)] = (weakref.ref(parameter), path, name)
            yield parameter, path, name

    def modules(self) -> Iterator[tuple[torch.nn.Module, str]]:
        """Yield the modules that were found and are still there, with what the script calls them."""
        for known, name in self._modules:
            module = known()
            if module is not None:
                yield module, name

    def bare(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield the tensors that no module holds: path, name and themselves."""
        for known, path, name in self._bare.values():
            tensor = known()
            if tensor is not None:
                yield path, name, tensor


def _holders(wanted: Iterable[int]) -> list[torch.nn.Module]:
    """Return the outermost modules in memory that hold tensors with these identities."""
    keys = set(wanted)
    modules = instances_of(torch.nn.Module)
    above: dict[int, list[torch.nn.Module]] = {}
    for module in modules:
        for child in (module.__dict__.get("_modules") or {}).values():
            above.setdefault(id(child), []).append(module)
    found, seen = [], set()
    waiting = [module for module in modules if not keys.isdisjoint(map(id, _own(module)))]
    while waiting:
        module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            waiting += above.get(id(module), ())
            if id(module) not in above:
                found.append(module)
    return found


def _own(module: torch.nn.Module) -> Iterable[Any]:
    table = module.__dict__.get("_parameters")
    return table.values() if isinstance(table, dict) else ()


def _among_variables(wanted: dict[int, torch.Tensor]) -> Iterator[tuple[torch.Tensor, str, str]]:
    """Yield tensors that a variable of the script's holds, or a table behind one; the others by their shape."""
    left = dict(wanted)
    variables = ((*locals_of(f).items(), *f.f_globals.items()) for f in script_frames())
    for name, value in chain.from_iterable(variables):
        parts = value.items() if type(value) is dict else enumerate(value) if type(value) in _TABLES else ()
        for path, own, tensor in (("", name, value), *((name, str(key), held) for key, held in parts)):
            if left.pop(id(tensor), None) is not None:
                yield tensor, path, own
    names = names_of(left.values()) if left else {}
    for number, tensor in enumerate(left.values()):
        path, _, own = names[id(tensor)].rpartition(".")
        yield tensor, path, own if path else f"tensor {number} of shape {tuple(tensor.shape)}"
