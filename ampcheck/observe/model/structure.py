"""What a model is made of: its modules and parameters, under the names the user gave them.

Models may override `modules`, `parameters` or `__getattr__`, hold themselves as a child, or stand behind a
function; so nothing here asks a model for more than its tables.
"""

import functools
import itertools
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # not in __all__

_PARALLEL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
#: Under these names torch.compile, FSDP and activation checkpointing keep the module they run.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
#: How many objects deep a model is looked for behind a callable.
_SEARCH_DEPTH = 3


def children(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules in a module's own table."""
    table = _table(module, "_modules")
    if not table:
        return iter(())
    return ((name, child) for name, child in table.items() if isinstance(child, torch.nn.Module))


def _table(module: torch.nn.Module, name: str) -> dict[str, Any]:
    """Return a table of a module; one that never called Module.__init__ stands before another and lends its."""
    if name in module.__dict__:
        return module.__dict__[name] or {}
    try:
        lent = getattr(module, name)
    except Exception:  # noqa: BLE001  # whatever a proxy's own __getattr__ does
        return {}
    return lent if isinstance(lent, dict) else {}


def inner(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return the module that a wrapper runs: DDP, DataParallel, torch.compile; None for any other."""
    names = ("module",) if isinstance(module, _PARALLEL) else _WRAPPED
    for name, child in children(module):
        if name in names:
            return child
    return None


def is_compiled(module: torch.nn.Module) -> bool:
    """Tell whether torch.compile made this module or compiles its calls."""
    # The compiler's class is known by name: importing its package takes a second.
    calls = module.__dict__.get("_compiled_call_impl")
    return type(module).__name__ == "OptimizedModule" or calls is not None


def roots(model: Any) -> dict[str, torch.nn.Module]:
    """Return the outermost modules of a model by name; one alone is the root and is called ''."""
    found: dict[int, tuple[str, torch.nn.Module]] = {}
    _search(model, "", _SEARCH_DEPTH, found, set())
    modules = [(name, module) for name, module in found.values()]
    if len(modules) == 1:
        return {"": modules[0][1]}
    return {name or f"module{i}": module for i, (name, module) in enumerate(modules)}


def _search(
    value: Any, name: str, depth: int, found: dict[int, tuple[str, torch.nn.Module]], seen: set[int]
) -> None:
    if isinstance(value, torch.nn.Module):
        found.setdefault(id(value), (name, value))
        return
    if depth == 0 or id(value) in seen or isinstance(value, (type, torch.Tensor)):
        return
    seen.add(id(value))
    for part, held in _held(value):
        _search(held, part, depth - 1, found, seen)


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a callable or plain object holds: an instance, arguments, a closure, globals, attributes."""
    if isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, functools.partial):
        yield from (("", held) for held in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield from ((name, held) for held in _contents(cell))
        names = value.__code__.co_names
        yield from ((name, value.__globals__[name]) for name in names if name in value.__globals__)
    elif isinstance(value, dict):
        yield from ((str(key), held) for key, held in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(i), held) for i, held in enumerate(value))
    elif type(value).__module__ != "builtins":
        yield from vars(value).items() if hasattr(value, "__dict__") else ()


def _contents(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not bound yet
        return ()


def named_modules(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield every module under every name it has, wrappers left out."""
    above: frozenset[int] = frozenset()
    waiting = [(name, module, above) for name, module in reversed(roots(model).items())]
    while waiting:
        path, module, above = waiting.pop()
        if id(module) in above:
            continue
        below = [*children(module)]
        held = inner(module) if below else None
        if held is not None:
            waiting.append((path, held, above | {id(module)}))
            continue
        yield path, module
        if below:
            above |= {id(module)}
            waiting += [(f"{path}.{name}" if path else name, child, above) for name, child in reversed(below)]


def modules(model: Any) -> list[torch.nn.Module]:
    """Return every module once, wrappers included."""
    found: dict[int, torch.nn.Module] = {}
    waiting = list(roots(model).values())
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting.extend(child for _, child in children(module))
    return list(found.values())


def named_parameters(model: Any) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield every parameter once: the path of the module that owns it, its name there, and itself."""
    seen: set[int] = set()
    for path, module in named_modules(model):
        for name, parameter in own_parameters(module):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield path, name, parameter


def own_parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters in a module's own table."""
    table = _table(module, "_parameters")
    return ((name, parameter) for name, parameter in table.items() if parameter is not None)


def in_table(module: torch.nn.Module, table: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what stands in one of a module's own tables, "_parameters" or "_buffers"."""
    held = module.__dict__.get(table) or {}
    return ((name, tensor) for name, tensor in held.items() if tensor is not None)


def own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters in a module's own table, and then the buffers."""
    return itertools.chain(in_table(module, "_parameters"), in_table(module, "_buffers"))


def is_lazy(tensor: torch.Tensor) -> bool:
    """Tell whether a parameter or buffer gets its shape only when it is first used."""
    return isinstance(tensor, UninitializedTensorMixin)


def outermost(paths: list[str]) -> list[str]:
    """Leave out what lies inside another of them: sorted by their parts, it follows that one."""
    kept: set[str] = set()
    last = None
    for parts in sorted(path.split(".") for path in paths):
        if last is None or parts[: len(last)] != last:
            kept.add(".".join(last := parts))
    return [path for path in paths if path in kept]
