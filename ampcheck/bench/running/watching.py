"""Watches a step's memory and work: every storage from when it is made to when it is gone."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ampcheck.bench.ledger import Allocation, Ledger, Operation, merged
from ampcheck.bench.running import work
from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.modules import ModuleTracker

_CASTS = frozenset({"_to_copy"})
_READ = torch.ops.aten._local_scalar_dense.default

Execute = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]


def plainly(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator as it is."""
    return func(*args, **kwargs)


class Watch(TorchDispatchMode):
    """Writes a ledger of storages and a tally of operations, for one model."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, model: Any, execute: Execute = plainly) -> None:
        """Prepare to watch."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotations here
        self.ledger = Ledger([], [])
        self.phase = "forward"
        self.recurrent = False
        self._operations: list[Operation] = []
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._made_by: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._execute = execute
        self._tracker = ModuleTracker(model)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._tracker.install(lambda *_: None)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """End to watch."""
        self._tracker.remove()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Return what was computed, like with like."""
        return merged(self._operations)

    def known(self, tensors: Iterable[Any], role: str) -> None:
        """Say what tensors are for; those not seen before are taken now."""
        for tensor in tensors:
            number = self._number(tensor, role)
            if number is not None:
                self.ledger.taken[number].role = role

    def begin(self) -> None:
        """Let the step start here; what was computed before does not count."""
        self.ledger.begin = len(self.ledger.events)
        self._operations.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and note what it took."""
        kwargs = kwargs or {}
        if func is _READ and self.phase == "update":
            return 1.0  # an optimizer that looks at its count of steps, which a fake tensor does not have
        out = self._execute(func, args, kwargs)
        name = func._schema.name.partition("::")[2]
        cast = name in _CASTS and _changes(args, out)
        role = "cast copies" if cast else "activations" if self.phase == "forward" else "temporaries"
        for leaf in tree_iter(out):
            if isinstance(leaf, torch.Tensor):
                self._number(leaf, role)
        if func.namespace == "aten":
            self._count(func, name, args, kwargs, out, cast=cast)
        return out

    def _number(self, tensor: Any, role: str) -> int | None:
        """Return the number of a tensor's storage, taken now if it is new; None where it has none."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        number = self._numbers.get(storage)
        if number is not None:
            return number
        ledger = self.ledger
        number = self._numbers[storage] = len(ledger.taken)
        phase = "" if role in {"parameters", "buffers", "batch"} else self.phase
        ledger.taken.append(
            Allocation(storage.nbytes(), role, self._tracker.path(self._tracker.current), phase)
        )
        ledger.events.append(number + 1)
        weakref.finalize(storage, ledger.events.append, -(number + 1)).atexit = False
        return number

    def _recurrent(self) -> bool:
        """Tell whether a recurrent layer is running: a GPU has one kernel for what is unrolled here."""
        return isinstance(self._tracker.module(self._tracker.current), torch.nn.RNNBase)

    def _count(self, func: Any, name: str, args: Any, kwargs: Any, out: Any, *, cast: bool) -> None:
        ins = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        outs = [leaf for leaf in tree_iter(out) if isinstance(leaf, torch.Tensor)]
        held = {_memory(leaf) for leaf in ins}
        fresh = [leaf for leaf in outs if _memory(leaf) not in held]
        writes = any(slot.is_write for slot in func._schema.arguments)
        if not fresh and not writes:
            return  # a view moves nothing
        flops = work.flops(func, name, args, kwargs, out)
        floating = next((leaf for leaf in (*ins, *outs) if leaf.is_floating_point()), None)
        unrolled = self._recurrent()
        self.recurrent |= unrolled
        if floating is None or (unrolled and not flops):
            return
        fusable = work.fusable(func, name)
        self._operations.append(
            Operation(
                name,
                self._tracker.path(self._tracker.current),
                self.phase,
                str(floating.dtype).removeprefix("torch."),
                () if unrolled else work.sizes(name, ins),
                1,
                flops,
                work.moved(name, ins, fresh, _written(func, args) if writes else []),
                cast,
                work.layout(name, ins),
                () if unrolled else work.product(name, args, ins, outs),
                work.kernels(name, args, ins),
                sum(_bytes(leaf) for leaf in ins if fusable and self._pointwise(leaf)),
                fusable,
                work.winograd(name, args),
            )
        )
        for leaf in fresh:
            self._made_by[leaf.untyped_storage()] = fusable

    def _pointwise(self, tensor: torch.Tensor) -> bool:
        return _memory(tensor) is not None and self._made_by.get(tensor.untyped_storage(), False)


def _written(func: Any, args: Any) -> list[torch.Tensor]:
    """Return the tensors among its arguments that an operator writes to."""
    slots = zip(func._schema.arguments, args, strict=False)
    return [
        leaf
        for slot, arg in slots
        if slot.is_write
        for leaf in tree_iter(arg)
        if isinstance(leaf, torch.Tensor)
    ]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _memory(tensor: torch.Tensor) -> int | None:
    """Return what is the same for tensors that share their memory; None for one that has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _changes(args: Any, out: Any) -> bool:
    """Tell whether a copy changes the dtype to or from half precision."""
    source = args[0].dtype if args and isinstance(args[0], torch.Tensor) else None
    return source is not None and source != out.dtype and bool({source, out.dtype} & HALVES)
