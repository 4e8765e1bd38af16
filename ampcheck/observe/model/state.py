"""Everything a step may change, put back bit for bit."""

import itertools
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.modules.module as module_hooks

from ampcheck.observe.model.structure import is_lazy, modules

#: Containers that can be emptied and filled again without side effects; subclasses may do anything.
_CONTAINERS = frozenset({list, dict, set, deque, OrderedDict, defaultdict, Counter})
#: nn.Module's own tables: parameters, buffers, hooks, children.
MODULE_TABLES = frozenset(torch.nn.Module().__dict__)
#: Torch's tables of hooks that hear of every module.
_HOOKS_OF_ALL = [
    held
    for name, held in vars(module_hooks).items()
    if name.startswith("_global") and type(held) in _CONTAINERS
]
#: What else a class of modules may hold that a step changes.
_HELD = (torch.Tensor, torch.Generator)
#: How deep containers and plain objects are followed from a module, a batch or a loss.
_DEPTH = 5
#: Their objects hold no numbers of the user's, and often a lock or a process.
_PYTEST = {
    "_pytest",
    "pluggy",
    "xdist",
    "execnet",
}  # a suite of many tests holds more objects than are looked at
_OPAQUE = frozenset({*sys.stdlib_module_names, *_PYTEST, "builtins", "numpy", "torch", "ampcheck"}) - {
    "__main__"
}


@dataclass(frozen=True, slots=True)
class _Container:
    """A container that a step may fill anew, and what was in it."""

    container: Any
    content: Any

    def restore(self) -> None:
        if _same(self.container, self.content):
            return
        self.container.clear()
        if isinstance(self.container, (dict, set)):
            self.container.update(self.content)
        else:
            self.container.extend(self.content)


def _same(container: Any, content: Any) -> bool:
    if isinstance(container, dict):
        pairs = zip(container.items(), content.items(), strict=False)
        same = all(a[0] is b[0] and a[1] is b[1] for a, b in pairs)
    else:
        same = all(a is b for a, b in zip(container, content, strict=False))
    return same and len(container) == len(content)


class _Tensor:
    """A tensor, the memory it uses, the numbers there, and its gradient."""

    __slots__ = ("copy", "data", "grad", "grad_data", "hooks", "requires_grad", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.data = tensor.data
        self.copy = tensor.detach().clone()
        self.requires_grad = tensor.requires_grad
        self.grad = tensor.grad if tensor.is_leaf else None
        self.grad_data = None if self.grad is None else self.grad.data  # `half` changes it where it is
        self.hooks = [dict(held) if held else {} for held in _hooks_of(tensor)]

    def restore(self) -> None:
        tensor = self.tensor
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if tensor.is_leaf:
                tensor.grad = None
            elif self.requires_grad is False:  # written to by something that needs a gradient
                tensor.detach_()
            self._numbers()
            if tensor.is_leaf:
                if tensor.requires_grad != self.requires_grad:
                    tensor.requires_grad_(self.requires_grad)
                if self.grad is not None and self.grad_data is not None:
                    self.grad.data = self.grad_data
                tensor.grad = self.grad
        for now, before in zip(_hooks_of(tensor), self.hooks, strict=True):
            if now is not None and now != before:
                now.clear()
                now.update(before)

    def _numbers(self) -> None:
        tensor, data = self.tensor, self.data
        if tensor.layout is not torch.strided:
            tensor.data = self.copy.clone()
            return
        if not _at_same_place(tensor, data):
            tensor.data = data
        # An expanded tensor cannot be written to, by the step neither.
        if torch._debug_has_internal_overlap(data) != 1:
            data.copy_(self.copy)


def _hooks_of(tensor: torch.Tensor) -> list[Any]:
    """Return the tables of hooks that a leaf of the graph has, None where it has had none yet."""
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return [getattr(tensor, name, None) for name in names if tensor.is_leaf]


def _at_same_place(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return True  # a wrapper has no memory of its own
    return (tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr()) == (
        *(data.dtype, data.shape, data.stride()),
        data.data_ptr(),
    )


class Snapshot:
    """The state of a model, and of whatever else a step may change, at one moment.

    Restoring puts back values in place, attributes that were bound anew, containers and plain objects, hooks,
    gradients, and the state of torch's, Python's and (if it is loaded) NumPy's random generators, the
    model's own included.
    """

    def __init__(self, model: Any, *others: Any) -> None:
        self._containers = [_Container(table, table.copy()) for table in _HOOKS_OF_ALL]
        #: Of what can be given another class: itself, and its own.
        self._kinds: dict[int, tuple[Any, type]] = {}
        self._classes: dict[type, dict[str, Any]] = {}
        self._tensors: list[_Tensor] = []
        self._generators: list[tuple[Any, Any]] = []
        self._seen: dict[int, Any] = {}
        with torch._C.DisableTorchFunction():
            for value in (*modules(model), model, *others):
                self._keep(value, _DEPTH)
            for other in others:
                if callable(other):
                    for module in modules(other):
                        self._keep(module, _DEPTH)
        self._random = random_state()
        self._seen.clear()

    def restore(self) -> None:
        """Put the state back; gradients are the ones that were there."""
        with torch._C.DisableTorchFunction():
            for value, kind in self._kinds.values():
                if type(value) is not kind:  # as a parametrization does it
                    value.__class__ = kind
            for container in self._containers:
                container.restore()
            for kind, names in self._classes.items():
                _restore_class(kind, names)
            for tensor in self._tensors:
                tensor.restore()
        self.draw_again()

    def restore_state(self, but: frozenset[int]) -> None:
        """Put back what is held, but for tensors with these identities and for random generators."""
        with torch._C.DisableTorchFunction():
            for container in self._containers:
                container.restore()
            for tensor in self._tensors:
                if id(tensor.tensor) not in but:
                    tensor.restore()

    def draw_again(self) -> None:
        """Let what runs next draw what was drawn next at the moment of the snapshot."""
        for generator, state in self._generators:
            _set_state(generator, state)
        set_random_state(self._random)

    def _keep(self, value: Any, depth: int) -> None:
        if depth == 0 or id(value) in self._seen or isinstance(value, (str, bytes, int, float, type(None))):
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            if not is_lazy(value) and not value.is_nested:
                self._tensors.append(_Tensor(value))
            return
        state = _state_of(value)
        if state is not None:
            self._generators.append((value, state))
            return
        for held in self._contents(value):
            self._keep(held, depth - 1)

    def _contents(self, value: Any) -> Iterator[Any]:
        """Keep a value's containers; return what is in it."""
        if isinstance(value, torch.nn.Module):
            self._kinds[id(value)] = (value, type(value))
            return itertools.chain(self._of_module(value), self._of_class(type(value)))
        if isinstance(value, (list, tuple, set, deque)):
            items = list(value)
        elif isinstance(value, Mapping):
            items = list(value.values())
        else:
            items = []
        if type(value) in _CONTAINERS:
            self._containers.append(_Container(value, value.copy()))
        elif is_plain(value):
            table = vars(value)
            self._containers.append(_Container(table, table.copy()))
            items += table.values()
        return iter(items)

    def _of_module(self, module: torch.nn.Module) -> Iterator[Any]:
        own = module.__dict__
        tables = {name: own[name] for name in MODULE_TABLES if type(own.get(name)) in _CONTAINERS}
        self._containers += [_Container(table, table.copy()) for table in (own, *tables.values())]
        for name in ("_parameters", "_buffers"):
            # A scripted module holds them in something of its own.
            yield from (tables[name] if name in tables else getattr(module, name, {})).values()
        yield from [value for name, value in own.items() if name not in MODULE_TABLES]

    def _of_class(self, kind: type) -> Iterator[Any]:
        """Keep what the user's classes of modules hold themselves; yield what may change inside."""
        for base in kind.__mro__:
            if base in self._classes or base.__module__.partition(".")[0] in _OPAQUE:
                continue
            names = {name: value for name, value in vars(base).items() if not _is_special(name)}
            self._classes[base] = names
            yield from [
                value for value in names.values() if type(value) in _CONTAINERS or isinstance(value, _HELD)
            ]


def _is_special(name: str) -> bool:
    return name.startswith(("__", "_abc"))


def _restore_class(kind: type, names: dict[str, Any]) -> None:
    now = {name: value for name, value in vars(kind).items() if not _is_special(name)}
    for name in now.keys() - names.keys():
        delattr(kind, name)
    for name, value in names.items():
        if name not in now or now[name] is not value:
            setattr(kind, name, value)


def is_plain(value: Any) -> bool:
    """Tell whether an object is a bag of attributes made by the user or a library of theirs."""
    kind = type(value)
    if isinstance(value, type) or kind.__module__.partition(".")[0] in _OPAQUE - {"types"}:
        return kind.__name__ == "SimpleNamespace"
    return isinstance(getattr(value, "__dict__", None), dict)


def _state_of(value: Any) -> Any:
    """Return the state of a random generator, None for anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if type(value).__module__.startswith("numpy.random"):
        if hasattr(value, "bit_generator"):
            return value.bit_generator.state
        return value.get_state() if hasattr(value, "get_state") else None
    return None


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def random_state() -> dict[str, Any]:
    """Return the state of every random generator in use."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put every random generator back."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])
