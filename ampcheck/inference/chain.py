"""Calls of a model that go on from each other's results, with what a script computes between them, to be run again.

A sampler, a decoder with a cache or a flow calls its model on what came out of the call before. Each call by itself
says nothing of an error that adds up. So the first calls are kept as they follow each other: what the model was
called on, what it gave, and every operation of the script in between.
"""

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from ampcheck.observe.cuda_on_cpu.dispatcher import operator
from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.modules import parts_of, tensors_in
from ampcheck.observe.modes import OwnMode
from ampcheck.observe.script.recording import unseen

#: Calls that are kept: each is run again a few times, so of a large model fewer.
FEW_CALLS, MOST_CALLS, NUMBERS_RUN = 16, 256, 1 << 26
#: Operations between them, and bytes of what they are about.
MOST_OPERATIONS, MOST_BYTES = 4096, 1 << 26
#: Why a chain ends where nothing is wrong.
ENOUGH = "enough calls were seen"
#: What needs no copy, for nothing can change it.
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)
_DEPTH = 5
_READS = operator("aten::_local_scalar_dense")


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a tensor."""

    number: int
    low: bool  #: the script held it in half precision


@dataclass(frozen=True, slots=True)
class Held:
    """Stands for an object that has a state of its own, such as a cache."""

    number: int


@dataclass(frozen=True, slots=True)
class Operation:
    """What the script computed between two calls."""

    func: Any
    args: Any
    kwargs: Any
    outs: tuple[int, ...]


@dataclass(slots=True)
class Call:
    """One call of the model."""

    args: Any
    kwargs: Any
    outs: dict[str, int] = field(default_factory=dict)  #: tensors that it gave, by name
    carried: tuple[Ref, ...] = ()  #: what it is made on that was made of what the model gave before
    objects: dict[str, int] = field(default_factory=dict)  #: objects with a state that it gave
    put: dict[str, int] = field(default_factory=dict)  #: tensors that it put into containers it was given
    gave: dict[str, torch.Tensor] = field(default_factory=dict)  #: copies of what it gave to the script


class Chain(OwnMode):
    """Keeps the first calls of one model, and every operation on tensors between them."""

    def __init__(self, numbers: int) -> None:
        """Begin with no call of a model that has so many parameters."""
        super().__init__()
        self.most = min(max(NUMBERS_RUN // max(numbers, 1), FEW_CALLS), MOST_CALLS)
        self.events: list[Operation | Call] = []
        self.begun: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  #: what the first call was made on
        self.first: dict[str, int] = {}  #: the tensors of it, by name
        self.constants: dict[int, torch.Tensor] = {}  #: what was there before, as it was
        self.states: dict[int, Any] = {}  #: objects with a state, as they were at first
        self.ended = ""  #: why no more calls are followed
        self.calls = 0
        self.carried = False  #: a call is made on what an earlier one gave
        self.numbers_read = 0  #: numbers that the script took out of tensors on the way
        self._numbers: dict[int, tuple[Any, int]] = {}  #: by identity: the object, kept alive, and its number
        self._derived: set[int] = set()  #: tensors made from what the model gave
        self._places: set[int] = set()  #: memory in which such a tensor lies
        self._fresh = itertools.count()
        self._bytes = 0

    @property
    def follows(self) -> bool:
        """Tell whether what the script does between two calls is followed."""
        return bool(self.calls) and not self.ended

    def passes(self, value: Any) -> bool:
        """Tell whether a value holds a tensor that is made of what the model gave."""
        found = (self._numbers.get(id(tensor)) for _, tensor in tensors_in(value, ""))
        return any(known is not None and known[1] in self._derived for known in found)

    # -- what the script does

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a call that is about to run."""
        if self.ended:
            return
        self.pause()
        with unseen():
            call = Call(self._sealed(args), self._sealed(kwargs))
            if not self.calls:
                self.begun = copy.deepcopy((args, kwargs))
                self.first = {name: self._number(t) for name, t in tensors_in([args, kwargs], "")}
            else:
                refs = _refs([call.args, call.kwargs])
                call.carried = tuple(dict.fromkeys(ref for ref in refs if ref.number in self._derived))
                objects = _objects_in([*args, *kwargs.values()], "")
                self.carried |= bool(call.carried) or any(_filled(held) for _, held in objects)
        if not self.ended:
            self.events.append(call)

    def returned(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Take note of what the call has given, and follow what the script does with it."""
        call = self.events[-1] if self.events else None
        if self.ended or not isinstance(call, Call):
            return
        with unseen():
            if output is None:
                self.end("a call returned nothing, or raised")
                self.events.pop()
                return
            for name, tensor in tensors_in(output, "output"):
                call.outs[name] = self._made(tensor)
                call.gave[name] = tensor.detach().clone()
                self._weigh(tensor)
            for name, held in _objects_in(output, "output"):
                if id(held) not in self._numbers:
                    call.objects[name] = self._known(held)
            for name, tensor in tensors_in([args, kwargs], ""):
                if id(tensor) not in self._numbers:
                    call.put[name] = self._made(tensor)
        self.calls += 1
        if self.calls >= self.most:
            self.end(ENOUGH)
        elif not self.ended:
            self.resume()

    def end(self, why: str) -> None:
        """Follow no more; what was kept stays."""
        if not self.ended:
            self.ended = why
            self._end()
            self._numbers.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation as it would have run, and note it."""
        kwargs = kwargs or {}
        noted: tuple[Any, Any] | None = None
        try:
            with unseen():
                given = tree_leaves([args, kwargs])
                if not self.ended and any(isinstance(one, torch.Tensor) for one in given):
                    noted = self._sealed(list(args)), self._sealed(kwargs)
        except Exception as error:  # noqa: BLE001  # of our own
            self.end(f"{type(error).__name__}: {error}")
        out = func(*args, **kwargs)
        if noted is not None and not self.ended:
            try:
                with unseen():
                    self._note(func, noted, out)
            except Exception as error:  # noqa: BLE001
                self.end(f"{type(error).__name__}: {error}")
        return out

    def _note(self, func: Any, noted: tuple[Any, Any], out: Any) -> None:
        refs = list(_refs(noted))
        derived = any(ref.number in self._derived for ref in refs)
        if not isinstance(func, OpOverload):
            self.end(f"{func} was called between two calls")
            return
        if func is _READS:
            self.numbers_read += derived
            return
        results = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        if torch.Tag.nondeterministic_seeded in func.tags:  # what was drawn once is not drawn again
            for tensor in results:
                self._drawn(tensor)
            return
        for tensor in results if derived else ():
            self._made(tensor)
        outs = tuple(self._number(tensor, known=False) for tensor in results)
        self.events.append(Operation(func, *noted, outs))
        if len(self.events) > MOST_OPERATIONS:
            self.end(f"more than {MOST_OPERATIONS} operations lie between its calls")

    # -- tensors and objects

    def _drawn(self, tensor: torch.Tensor) -> None:
        """Take a random result as it is, also where it was written into a tensor that was there."""
        known = self._numbers.get(id(tensor))
        if known is None:
            self._number(tensor)
            return
        number = self._constant(tensor)
        copied = Operation(
            torch.ops.aten.copy_.default, [Ref(known[1], low=False), Ref(number, low=False)], {}, ()
        )
        self.events.append(copied)

    def _made(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor that is made of what the model gave."""
        number = self._number(tensor, known=False)
        self._derived.add(number)
        self._places.add(_place(tensor))
        return number

    def _number(self, tensor: torch.Tensor, *, known: bool = True) -> int:
        """Return the number of a tensor; with `known`, one that is new was there before, and its numbers are kept."""
        found = self._numbers.get(id(tensor))
        if found is not None:
            return found[1]
        if not known:
            self._weigh(tensor)
            return self._known(tensor)
        if _place(tensor) in self._places:
            self.end("its result is used in a way that ampcheck does not see")
        number = self._constant(tensor)
        self._numbers[id(tensor)] = (tensor, number)
        return number

    def _constant(self, tensor: torch.Tensor) -> int:
        self._weigh(tensor)
        number = next(self._fresh)
        self.constants[number] = tensor.detach().clone()
        return number

    def _known(self, held: Any) -> int:
        number = next(self._fresh)
        self._numbers[id(held)] = (held, number)
        return number

    def _weigh(self, tensor: torch.Tensor) -> None:
        self._bytes += tensor.numel() * tensor.element_size()
        if self._bytes > MOST_BYTES:
            self.end("the operations between its calls need too much memory")

    def _sealed(self, value: Any, depth: int = 0) -> Any:
        """Return arguments with a stand-in for every tensor and every object that has a state."""
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                self.end("its input needs a gradient")
            return Ref(self._number(value), value.dtype in HALVES)
        if isinstance(value, (_PLAIN, type)) or depth > _DEPTH:
            return value
        if type(value) in (list, tuple):
            return type(value)(self._sealed(one, depth + 1) for one in value)
        if type(value) is dict:
            return {key: self._sealed(one, depth + 1) for key, one in value.items()}
        if isinstance(value, torch.nn.Module) or not hasattr(value, "__dict__"):
            return value
        if id(value) not in self._numbers:
            number = self._known(value)
            self.states[number] = copy.deepcopy(value)
        return Held(self._numbers[id(value)][1])


def tensors_held(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in an object, wherever its attributes lead."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEPTH and not isinstance(value, (*_PLAIN, type, torch.nn.Module)):
        items = (
            value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        )
        for one in (*items, *getattr(value, "__dict__", {}).values()):
            yield from tensors_held(one, depth + 1)


def _filled(held: Any) -> bool:
    """Tell whether an object holds tensors, as a cache does."""
    return next(tensors_held(held), None) is not None


def _refs(value: Any) -> Iterator[Ref]:
    return (one for one in tree_leaves(value) if isinstance(one, Ref))


def _place(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _objects_in(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every object with a state of its own in what a model gave, by name."""
    if isinstance(value, (torch.Tensor, *_PLAIN)) or depth > _DEPTH:
        return
    if type(value) not in (list, tuple, dict) and hasattr(value, "__dict__"):
        yield name, value
    for part, held in parts_of(value):
        yield from _objects_in(held, name + part, depth + 1)
