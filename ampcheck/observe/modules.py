"""Which module is running, under the model's own names."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampcheck.trace import ModuleInfo

#: How deep nested inputs and outputs are followed; deeper ones are left to the operations that made them.
MAX_DEPTH = 6


_PARALLEL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


class Boundary(Protocol):
    """What is told of the tensors that enter and leave a module."""

    def __call__(self, module: int, slot: str, value: Any) -> None:
        """Take the value at a slot of a module."""


@dataclass(slots=True)
class _Entry:
    module: torch.nn.Module
    path: str
    aliases: list[str]
    calls: int = 0
    order: int = -1


class ModuleTracker:
    """Keeps the stack of running modules through global hooks, so the model itself is not touched.

    A module that the model does not own counts as part of the one that calls it. Modules that override
    `__call__` or are run through `.forward` do not announce themselves; `unseen` names them.
    """

    def __init__(self, model: Any, boundary: Boundary) -> None:
        """Prepare the names of a model's modules; `boundary` is told what enters and leaves."""
        self._entries = _named_entries(model)
        self._index = {id(entry.module): i for i, entry in enumerate(self._entries)}
        self._boundary = boundary
        self._thread = threading.get_ident()
        self._stack: list[tuple[int, bool]] = []
        self._handles: list[Any] = []
        self._ran = 0
        self.current = 0  #: index of the running module
        self.recomputing = False  #: the running module was called from within a backward
        self.foreign_thread_calls = 0

    def install(self) -> None:
        """Begin to follow module calls."""
        self._stack.clear()
        self.current, self.recomputing = 0, False
        self._thread = threading.get_ident()
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        while self._handles:
            self._handles.pop().remove()

    def path(self, index: int) -> str:
        """Return the qualified name of a module."""
        return self._entries[index].path

    def name_of(self, module: torch.nn.Module) -> str | None:
        """Return the qualified name of a module of the model, None for any other."""
        index = self._index.get(id(module))
        return None if index is None else self._entries[index].path

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if threading.get_ident() != self._thread:
            self.foreign_thread_calls += 1
            return
        index = self._index.get(id(module))
        self._stack.append((self.current, self.recomputing))
        if torch._C._current_autograd_node() is not None:  # noqa: SLF001
            self.recomputing = True
        if index is None:
            return
        self.current = index
        if not self.recomputing:
            entry = self._entries[index]
            entry.calls += 1
            if entry.order < 0:
                entry.order, self._ran = self._ran, self._ran + 1
            self._boundary(index, "input", args)

    def _leave(self, module: torch.nn.Module, _: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        if threading.get_ident() != self._thread or not self._stack:
            return
        index = self._index.get(id(module))
        if index is not None and not self.recomputing:
            if kwargs:
                self._boundary(index, "input", kwargs)
            self._boundary(index, "output", output)
        self.current, self.recomputing = self._stack.pop()

    def unseen(self) -> list[str]:
        """Return the names of modules with parameters of their own that never announced themselves."""
        return [e.path for e in self._entries if not e.calls and next(e.module.parameters(recurse=False), None) is not None]

    def infos(self) -> tuple[ModuleInfo, ...]:
        """Return what ran, in order of first execution."""
        ran = sorted((entry for entry in self._entries if entry.calls), key=lambda entry: entry.order)
        return tuple(_info(entry) for entry in ran)


def _info(entry: _Entry) -> ModuleInfo:
    own = list(entry.module.parameters(recurse=False))
    return ModuleInfo(
        entry.path,
        type(entry.module).__name__,
        entry.calls,
        tuple(entry.aliases),
        sum(parameter.numel() for parameter in own if not _is_lazy(parameter)),
        tuple(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in own})),
    )


def _is_lazy(parameter: torch.Tensor) -> bool:
    return isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin)


def _named_entries(model: Any) -> list[_Entry]:
    """Return one entry a module, the root first, wrappers left out and their prefixes taken off the names."""
    entries: dict[int, _Entry] = {}
    for name, module in _named_modules(unwrapped(model)):
        path = plain_name(name)
        if is_wrapper(module):
            continue
        if id(module) not in entries:
            entries[id(module)] = _Entry(module, path, [])
        elif path not in (entries[id(module)].path, *entries[id(module)].aliases):
            entries[id(module)].aliases.append(path)
    return list(entries.values()) or [_Entry(torch.nn.Module(), "", [])]


def is_wrapper(module: Any) -> bool:
    """Tell whether a module only runs another one: DDP, DataParallel, torch.compile."""
    # The compiler's class is known by name: importing its package takes a second.
    return isinstance(module, _PARALLEL) or type(module).__name__ == "OptimizedModule"


def unwrapped(model: Any) -> Any:
    """Return the model inside DDP, DataParallel and torch.compile."""
    while is_wrapper(model):
        model = model.module if isinstance(model, _PARALLEL) else model._orig_mod  # noqa: SLF001
    return model


def _named_modules(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    named: Callable[..., Iterator[tuple[str, torch.nn.Module]]] | None = getattr(model, "named_modules", None)
    return named(remove_duplicate=False) if callable(named) else iter(())


def plain_name(name: str) -> str:
    """Return a module's name without the parts that compiling, sharding and checkpointing put into it."""
    wrappers = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    parts = [part for part in name.split(".") if part not in wrappers]
    return ".".join(parts)


def tensors_in(value: Any, slot: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a nested value with its slot: output, output[1], output.logits, output['x']."""
    if isinstance(value, torch.Tensor):
        yield slot, value
    elif depth < MAX_DEPTH and value is not None:
        for part, inner in _parts(value):
            yield from tensors_in(inner, slot + part, depth + 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return ((f".{key}", inner) for key, inner in value.items())
    if hasattr(value, "_fields") and isinstance(value, tuple):
        return ((f".{name}", getattr(value, name)) for name in value._fields)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return ((f"[{i}]", inner) for i, inner in enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return ((f".{f.name}", getattr(value, f.name, None)) for f in fields(value))
    return iter(())
