"""An FP32 run beside a low-precision one: every result a second time, from FP32 inputs, op for op.

A script's step cannot be run again: what its code does between the forward and the update is its own. So each
operation runs as the script wants it, and then once more on the twins of its inputs: FP32 tensors that hold what
would stand there if nothing before had been rounded. Twins belong to storages, so views need no care. Where an
operation draws random numbers the twin takes the draw; where it picks (an argmax, a comparison) the script's pick
decides for both. Nothing here is visible to the script: no autograd, no random state, no written argument.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.sharing import MESSAGES, arrived, share, sum_of

_LOW = frozenset({torch.float16, torch.bfloat16})
_WIDE = frozenset({torch.float32, torch.float64})
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_transformed = torch._C._functorch.is_functorch_wrapped_tensor
#: Arguments that an operation writes although its schema does not say so: running averages.
_WRITES = dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (3, 4))
#: Twins held before the ones whose tensors are gone are looked for.
_SWEEP = 16


class _Rule(NamedTuple):
    """What there is to know of an overload."""

    view: bool  #: its results share their input's storage, or hold nothing yet
    written: tuple[int | str, ...]  #: positions, or names of keyword arguments, that it writes
    random: bool
    name: str
    silent: bool = False  #: it returns nothing: all it does is write
    message: bool = False  #: it goes to other ranks


#: Of each overload seen, by identity, which hashing goes through C++ for: itself, to keep that, and its rule.
_RULES: dict[int, tuple[Any, _Rule]] = {}


class _Twin(NamedTuple):
    storage: StorageWeakRef
    flat: torch.Tensor  #: as many elements as the storage has


class Shadow:
    """The twins of a step's tensors; they live as long as what they stand beside."""

    def __init__(self, execute: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        """Begin without twins; `execute` runs an operation as the script wants it."""
        self._execute = execute
        self._twins: dict[int, _Twin] = {}
        self._sweep_at = _SWEEP
        self._received: set[int] = set()  #: storages that hold sums over ranks
        self.scale = 1.0  #: of the loss in the script's backward
        self.failed: dict[str, int] = {}  #: operations whose FP32 run raised, and how often

    def clear(self) -> None:
        """Forget all twins."""
        self._twins.clear()
        self._received.clear()
        self._sweep_at = _SWEEP

    def __bool__(self) -> bool:
        """Tell whether anything differs from FP32 yet."""
        return bool(self._twins)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return what stands here in FP32; None where that is the tensor itself."""
        flat = self._beside(tensor)
        return (
            None if flat is None else flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        )

    def _beside(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the twin of a tensor's whole storage."""
        if not self._twins or not _readable(tensor):
            return None
        storage = tensor.untyped_storage()
        twin = self._twins.get(storage._cdata)
        if twin is None or twin.flat.numel() != storage.nbytes() // tensor.element_size():
            return None  # the second: seen as another dtype, or given other memory
        return twin.flat

    def set(self, tensor: torch.Tensor, value: float) -> None:
        """Say what stands here in FP32: one number everywhere."""
        twin = self.of(tensor)
        (self._adopt(tensor) if twin is None else twin).fill_(value)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, and where anything in it differs from FP32, its twin."""
        _, rule = _RULES.get(id(func)) or _rule(func)
        if rule.view or not self._differs(args, kwargs):
            out = self._execute(func, args, kwargs)
            if not rule.view and _holds_low(out):
                self._take(out)
            return out
        if rule.message:
            return self._send(rule, func, args, kwargs)
        if rule.name == "copy_" and self._arrives_again(args):
            return self._execute(func, args, kwargs)
        written = [*_tensors(_written(rule, args, kwargs))]
        for tensor in written:
            if _readable(tensor) and self.of(tensor) is None:
                self._adopt(tensor)
        wide_args = tuple(self._wide(value) for value in args)
        wide_kwargs = {name: self._wide(value) for name, value in kwargs.items()}
        out = self._execute(func, args, kwargs)
        self._mirror(rule, func, out, (args, wide_args, wide_kwargs), written)
        return out

    def _send(self, rule: _Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation between ranks, once; of a sum, FP32's share is known here."""
        sent = sum_of(rule.name, args)
        wide = None if sent is None else self.of(sent.part)
        before = None if sent is None or wide is None else sent.part.clone()
        out = self._execute(func, args, kwargs)
        arrived(out)
        if sent is None or wide is None or before is None:
            self._take((out, list(args)))
        else:
            self._keep(sent.result, share(sent, before, wide, self.scale))
            self._received.add(sent.result.untyped_storage()._cdata)
        return out

    def _arrives_again(self, args: tuple[Any, ...]) -> bool:
        """Tell whether a message that has been waited for is copied to its place once more, as Gloo does."""
        place, source = args[:2]
        if not self._received or place.untyped_storage()._cdata not in self._received:
            return False
        if self.of(source) is not None or place.dtype != source.dtype:
            return False
        return bool(torch.isclose(place, source, rtol=0.0, atol=0.0, equal_nan=True).all())

    def _mirror(self, rule: _Rule, func: Any, out: Any, values: Any, written: list[torch.Tensor]) -> None:
        """Give the results of an operation their twins."""
        args, wide_args, wide_kwargs = values
        try:
            if rule.random and not _repeatable(rule.name, args):
                wide = _dropped(rule.name, wide_args, out)
            else:
                wide = func(*wide_args, **wide_kwargs)
        except Exception:  # noqa: BLE001  # an operation that insists on half precision; its result is taken as it is
            self.failed[rule.name] = self.failed.get(rule.name, 0) + 1
            wide = None
        if wide is None and not (rule.silent and rule.name not in self.failed):
            self._take(out)
            self._take(written)
            return
        held = {tensor.untyped_storage()._cdata for tensor in written if _readable(tensor)}
        inputs = {twin.untyped_storage()._cdata for twin in _tensors(wide_args) if _readable(twin)}
        for tensor, twin in zip(_tensors((out,)), _tensors((wide,)), strict=False):
            fresh = tensor.is_floating_point() and _readable(tensor)
            if fresh and tensor.untyped_storage()._cdata not in held:
                own = twin.untyped_storage()._cdata not in inputs
                self._keep(tensor, twin if own else twin.clone())

    def _differs(self, args: Any, kwargs: Any) -> bool:
        """Tell whether a twin or a half-precision tensor or dtype is among the inputs."""
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, torch.Tensor):
                if value.dtype in _LOW or self._beside(value) is not None:
                    return True
            elif isinstance(value, (list, tuple)):
                if self._differs(value, None):
                    return True
            elif isinstance(value, torch.dtype) and value in _LOW:
                return True
        return False

    def _wide(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            twin = self.of(value)
            if twin is not None:
                return twin
            if value.dtype in _LOW and _readable(value):
                return value.to(torch.float32)
            return value
        if isinstance(value, (list, tuple)):
            return [self._wide(item) for item in value]
        return torch.float32 if isinstance(value, torch.dtype) and value in _LOW else value

    def _take(self, out: Any) -> None:
        """Let FP32 go on from what the script has."""
        for tensor in _tensors((out,)):
            twin = self.of(tensor)
            if twin is not None:
                twin.copy_(tensor)
            elif tensor.dtype in _LOW and _readable(tensor):
                self._adopt(tensor)

    def _adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give a storage a twin that holds the same numbers; return the tensor's part of it."""
        storage = tensor.untyped_storage()
        whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            storage, 0, (storage.nbytes() // tensor.element_size(),), (1,)
        )
        self._hold(storage, whole.to(_wider(tensor.dtype), copy=True))
        twin = self.of(tensor)
        return tensor if twin is None else twin

    def _keep(self, tensor: torch.Tensor, wide: torch.Tensor) -> None:
        """Hold the FP32 result of an operation beside the script's."""
        storage = tensor.untyped_storage()
        if wide.shape != tensor.shape:
            self._adopt(tensor)
            return
        size = storage.nbytes() // tensor.element_size()
        dense = wide.untyped_storage()
        same = wide.stride() == tensor.stride() and not wide.storage_offset() and not tensor.storage_offset()
        if same and dense.nbytes() == size * wide.element_size():
            flat = wide.as_strided((size,), (1,))
        else:
            flat = torch.zeros(size, dtype=_wider(wide.dtype), device=wide.device)
            flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(wide)
        self._hold(storage, flat)

    def _hold(self, storage: torch.UntypedStorage, flat: torch.Tensor) -> None:
        if len(self._twins) >= self._sweep_at:
            self._twins = {key: twin for key, twin in self._twins.items() if not twin.storage.expired()}
            self._sweep_at = len(self._twins) * 9 // 8 + _SWEEP
        self._twins[storage._cdata] = _Twin(StorageWeakRef(storage), flat)


def _readable(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and not _transformed(tensor)
    )


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _LOW else dtype


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _holds_low(out: Any) -> bool:
    return any(tensor.dtype in _LOW for tensor in _tensors((out,)))


def _written(rule: _Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    held = [args[at] for at in rule.written if isinstance(at, int) and at < len(args)]
    return held + [kwargs[at] for at in rule.written if isinstance(at, str) and at in kwargs]


def _repeatable(name: str, args: tuple[Any, ...]) -> bool:
    """Tell whether an operation that may draw random numbers does not draw any here."""
    return name.startswith("_scaled_dot_product") and not any(type(arg) is float and arg > 0 for arg in args)


def _dropped(name: str, args: tuple[Any, ...], out: Any) -> Any:
    """Return the FP32 result of an operation with the script's random draw; None where it is all draw."""
    if name != "native_dropout" or not isinstance(out, tuple):
        return None
    values, p, train = args[:3]
    kept = values * out[1] * (1.0 / (1.0 - p)) if p < 1 else values * out[1]
    return (kept if train or train is None else values.clone(), out[1])


def _rule(func: Any) -> tuple[Any, _Rule]:
    return _RULES.setdefault(id(func), (func, _rule_of(func)))


def _rule_of(func: Any) -> _Rule:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return _Rule(view=True, written=(), random=False, name=str(func))
    space, _, name = schema.name.rpartition("::")
    returns = [ret for ret in schema.returns if "Tensor" in str(ret.type)]
    views = [ret for ret in returns if ret.alias_info is not None and not ret.alias_info.is_write]
    written: list[int | str] = [
        slot.name if slot.kwarg_only else at for at, slot in enumerate(schema.arguments) if slot.is_write
    ]
    written += [at for at in _WRITES.get(name, ()) if at not in written]
    unwritten = name.startswith(("empty", "new_empty")) or name in {"set_", "resize_"}
    # Views that their schema does not call so share a storage all the same.
    alias = name in {"_unsafe_view", "_reshape_alias"} or name.startswith("unsafe_")
    view = (
        unwritten or alias or (bool(returns) and len(views) == len(returns)) or (not returns and not written)
    )
    random = torch.Tag.nondeterministic_seeded in func.tags
    return _Rule(
        view and space not in MESSAGES, tuple(written), random, name, not schema.returns, space in MESSAGES
    )
