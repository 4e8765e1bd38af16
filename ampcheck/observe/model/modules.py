"""Which module is running, under the model's own names."""

import inspect
import sys
import threading
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.model.structure import in_table, is_lazy, named_modules, outermost, own_parameters
from ampcheck.observe.source import frames, object_of
from ampcheck.values.trace import ModuleInfo
from ampcheck.values.wording import some

#: How deep nested inputs and outputs are followed; deeper ones are left to the operations that made them.
MAX_DEPTH = 6
#: Modules named in one line of what was not audited.
_NAMED = 20

_current_node = torch._C._current_autograd_node
#: What a container's forward is: it only holds modules that others call.
_NO_FORWARD = torch.nn.Module.forward
#: Stands for the root where several modules stand side by side.
_NOTHING = torch.nn.Module()


#: Takes the value at a slot of a module, which enters or leaves it.
Boundary = Callable[[int, str, Any], None]


def untold(_module: int, _slot: str, _value: Any) -> None:
    """Take nothing: between recordings no listener is kept alive."""


@dataclass(slots=True)
class _Entry:
    module: torch.nn.Module
    path: str
    aliases: dict[str, None]  #: its other names, in order
    calls: int = 0
    recomputed: int = 0
    order: int = -1
    top: bool = False  #: it is a whole model

    @property
    def bypassed(self) -> bool:
        """Whether it took part in the step without being called as a module."""
        if type(self.module).__call__ is not torch.nn.Module.__call__:
            return True
        return any(gradient_of(parameter) is not None for _, parameter in own_parameters(self.module))


class ModuleTracker:
    """Keeps the stack of running modules through global hooks, so the model itself is not touched.

    A module that the model does not own counts as part of the one that calls it. So does one that overrides
    `__call__` or is run through `.forward`: it does not announce itself. `not_audited` names those.
    """

    def __init__(self, model: Any) -> None:
        self._entries = _named_entries(model)
        self._entries[0].top = self._entries[0].module is not _NOTHING
        self._index = {id(entry.module): i for i, entry in enumerate(self._entries)}
        self._boundary: Boundary = untold
        self._path: Any = None
        self._thread = threading.get_ident()
        self.followed: Container[int] = ()  #: threads that are recorded too
        self._stack: list[tuple[torch.nn.Module, int, bool]] = []
        self._handles: list[Any] = []
        self._loose: list[tuple[str, str, torch.Tensor]] = []
        self._ran = 0
        self._foreign_calls = 0
        self.current = 0  #: index of the running module
        self.recomputing = False  #: the running module was called from within a backward

    def adopt(self, model: torch.nn.Module, name: str) -> None:
        """Follow one more model, whose modules' names begin with this one."""
        known = {entry.path for entry in self._entries}
        for entry in _named_entries(model):
            if id(entry.module) not in self._index and entry.module is not _NOTHING:
                entry.path = _joined(name, entry.path)
                entry.aliases = {_joined(name, alias): None for alias in entry.aliases}
                while entry.path in known:
                    entry.path += "'"
                entry.top = entry.module is model
                self._index[id(entry.module)] = len(self._entries)
                self._entries.append(entry)

    def hold(self, path: str, name: str, parameter: torch.Tensor) -> None:
        """Follow one more parameter, which is in none of the modules."""
        self._loose.append((path, name, parameter))

    def parameters(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield every parameter: the path of the module that owns it, its name there, and itself."""
        for entry in self._entries:
            for name, parameter in own_parameters(entry.module):
                yield entry.path, name, parameter
        yield from self._loose

    def by_frame(self) -> int:
        """Return the index of the innermost module whose method is running, found among the frames; 0: none."""
        for frame in frames():
            index = self._index.get(id(object_of(frame)))
            if index is not None:
                return index
        return 0

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every buffer with its full name."""
        for entry in self._entries:
            for name, buffer in in_table(entry.module, "_buffers"):
                yield f"{entry.path}.{name}".lstrip("."), buffer

    def call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a module whose call had begun before the hooks were there."""
        if self._path is None:
            self._enter(module, args, kwargs)
        else:
            self._path.enter(module, args)  # it finds `kwargs` here, as in the function that calls a hook

    def install(self, boundary: Boundary, path: Any = None, *, layers: bool = False) -> None:
        """Begin to follow module calls; `boundary` receives what enters and leaves.

        A `path`, of compiled.py, does it by itself; with `layers` it measures what modules give.
        """
        self._path = path
        if path is not None:
            path.start(layers)
            self._handles = [
                register_module_forward_pre_hook(path.enter),
                register_module_forward_hook(path.leave, always_call=True),
            ]
            return
        self._boundary = boundary
        self._stack.clear()
        self.current, self.recomputing = 0, False
        self._thread = threading.get_ident()
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            # Without kwargs: torch calls a hook that wants them and is always called with the wrong
            # arguments when a module raises.
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        while self._handles:
            self._handles.pop().remove()
        if self._path is not None:
            self._path.start(False)  # noqa: FBT003  # of C
            self._foreign_calls = self._path.foreign
            for entry, visits in zip(self._entries, self._path.visits(), strict=True):
                entry.calls, entry.recomputed, entry.order = visits
        self._stack.clear()
        self._boundary = untold

    def modules(self) -> list[torch.nn.Module]:
        """Return the modules by their index."""
        return [entry.module for entry in self._entries]

    def named(self) -> Iterator[tuple[torch.nn.Module, str]]:
        """Yield the modules by their index, with their qualified names."""
        return ((entry.module, entry.path) for entry in self._entries)

    def path(self, index: int) -> str:
        """Return the qualified name of a module."""
        return self._entries[index].path

    def module(self, index: int) -> torch.nn.Module:
        """Return a module."""
        return self._entries[index].module

    def name_of(self, module: torch.nn.Module) -> str | None:
        """Return the qualified name of a module of the model, None for any other."""
        index = self._index.get(id(module))
        return None if index is None else self._entries[index].path

    def _elsewhere(self) -> bool:
        # Autograd's own threads carry the recorder with them; a thread of the user's does not.
        return threading.get_ident() != self._thread and _current_node() is None

    def _enter(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        index = self._index.get(id(module))
        if self._elsewhere():
            self._called_elsewhere(index)
            return
        self._stack.append((module, self.current, self.recomputing))
        if _current_node() is not None:
            self.recomputing = True
        if index is None:
            return
        self.current = index
        entry = self._entries[index]
        if self.recomputing:
            entry.recomputed += 1
            return
        self._called(entry)
        self._boundary(index, "input", args)
        # A global hook is not given them: they are a variable of the function that calls it.
        kwargs = sys._getframe(1).f_locals.get("kwargs") if kwargs is None else kwargs
        if kwargs and isinstance(kwargs, dict):
            self._boundary(index, "input", kwargs)

    def _called(self, entry: _Entry) -> None:
        entry.calls += 1
        if entry.order < 0:
            entry.order, self._ran = self._ran, self._ran + 1

    def _called_elsewhere(self, index: int | None) -> None:
        """Take note of a call in another thread, of whose operations each tells of its module by itself."""
        if threading.get_ident() not in self.followed:
            self._foreign_calls += 1
        elif index is not None:
            self._called(self._entries[index])

    def _leave(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        stack = self._stack
        if not stack or self._elsewhere():
            return
        if stack[-1][0] is not module and not any(entered is module for entered, _, _ in stack):
            return
        index = self._index.get(id(module))
        if index is not None and not self.recomputing:
            self._boundary(index, "output", output)
        # Above it lie modules that were left by an exception which no hook sees.
        entered = None
        while entered is not module:
            entered, self.current, self.recomputing = stack.pop()

    def not_audited(self) -> dict[str, int]:
        """Return which modules were not seen, and how many."""
        silent = [
            entry
            for entry in self._entries
            if not (entry.calls or entry.recomputed) and _runs(entry) and not self._held(entry)
        ]
        bypassed = [entry.path for entry in silent if entry.bypassed]
        unused = outermost([entry.path for entry in silent if not entry.bypassed])
        found = {
            f"modules run without being called, counted as part of their caller: {some(bypassed, _NAMED)}": len(
                bypassed
            ),
            f"modules that were never called: {some(unused, _NAMED)}": len(unused),
            "module calls in threads of the model's own": self._foreign_calls,
        }
        return {text: count for text, count in found.items() if count}

    def infos(self) -> tuple[ModuleInfo, ...]:
        """Return what ran, in order of first execution, behind the models whose parts ran without them."""
        ran = [entry for entry in self._entries if entry.calls or self._held(entry)]
        return tuple(map(_info, sorted(ran, key=lambda entry: entry.order)))

    def _held(self, entry: _Entry) -> bool:
        """Tell whether a whole model was not called, but parts of it were."""
        if not entry.top or entry.calls:
            return False
        start = f"{entry.path}." if entry.path else ""
        return any(other.calls and other.path.startswith(start) for other in self._entries)


def _joined(name: str, path: str) -> str:
    return f"{name}.{path}" if path else name


def _runs(entry: _Entry) -> bool:
    """Tell whether a module does something itself, instead of holding others."""
    if isinstance(entry.module, torch.nn.Sequential) and not entry.module._modules:
        return False  # an empty one hands on what it gets
    return bool(entry.path) and inspect.getattr_static(type(entry.module), "forward", None) is not _NO_FORWARD


def _info(entry: _Entry) -> ModuleInfo:
    own = [parameter for _, parameter in own_parameters(entry.module)]
    return ModuleInfo(
        entry.path,
        type(entry.module).__name__,
        entry.calls,
        tuple(entry.aliases),
        sum(parameter.numel() for parameter in own if not is_lazy(parameter)),
        tuple(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in own})),
    )


def _named_entries(model: Any) -> list[_Entry]:
    """Return one entry a module, the root first: an empty one where several modules stand side by side."""
    entries: dict[int, _Entry] = {}
    for path, module in named_modules(model):
        if id(module) not in entries:
            entries[id(module)] = _Entry(module, path, {})
        elif path != entries[id(module)].path:
            entries[id(module)].aliases[path] = None
    found = list(entries.values())
    return found if found and not found[0].path else [_Entry(_NOTHING, "", {}), *found]


def tensors_in(value: Any, slot: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a nested value with its slot: output, output[1], output.logits, output.x."""
    if isinstance(value, torch.Tensor):
        yield slot, value
    elif depth < MAX_DEPTH and value is not None:
        for part, held in parts_of(value):
            yield from tensors_in(held, slot + part, depth + 1)


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container holds, each with the end of its slot: [1], .logits; nothing of other objects."""
    if isinstance(value, Mapping):
        return ((f".{key}", held) for key, held in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ((f".{name}", getattr(value, name)) for name in value._fields)
    # Not any sequence: reading a data set's elements would load them.
    if isinstance(value, (list, tuple, deque)):
        return ((f"[{i}]", held) for i, held in enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return ((f".{f.name}", getattr(value, f.name, None)) for f in fields(value))
    return iter(())
