"""What an autocast kernel does, found by calling it.

The kernel registered for an operator is called on tensors that claim to be on its device and have no storage,
and the operator is stopped where the kernel hands it on: between autocast and autograd. No device and no
arithmetic is needed.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ampcheck.observe.cuda_on_cpu.dispatcher import install, operator, remove


class Forwarded(NamedTuple):
    """What an autocast kernel handed to the next dispatch key."""

    name: str  #: of the operator that it called
    tensors: tuple[torch.dtype, ...]  #: the dtypes of its tensors, in order, those in lists included
    chosen: torch.dtype | None  #: the result dtype that it asked for


def forwarded(
    backend: str, name: str, dtypes: Sequence[torch.dtype], low: torch.dtype = torch.float16, **given: object
) -> Forwarded:
    """Call `name` under `backend`'s autocast to `low`, on tensors of `dtypes` in turn; return what it did.

    Other arguments are made up, unless `given` by name.
    """
    # In a thread of its own, where no dispatch mode is active and autocast's state is nobody else's.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(_forwarded, backend, name, dtypes, low, given).result()


def _forwarded(
    backend: str, name: str, dtypes: Sequence[torch.dtype], low: torch.dtype, given: Mapping[str, object]
) -> Forwarded:
    # As C has them: a CPU may stand in for CUDA under torch's own names.
    torch._C.set_autocast_enabled(backend, True)  # noqa: FBT003
    torch._C.set_autocast_dtype(backend, low)
    supply = itertools.cycle(dtypes)
    arguments = [
        given[slot.name]
        if slot.name in given
        else _argument(str(slot.type), lambda: _placeless(backend, next(supply)))
        for slot in operator(name)._schema.arguments
        if not slot.kwarg_only
    ]
    with _intercepted(backend, name) as seen:
        try:
            operator(name)(*arguments)
        except _Stop:
            return seen[0]
    raise RuntimeError(f"expected {name} to reach autograd on {backend}, it returned; report this operator")


class _Stop(BaseException):
    """Ends a call as soon as the kernel has handed on its arguments."""


class _Placeless(torch.Tensor):
    """A tensor without storage that claims a device: it can be cast, and nothing else."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        """Cast, or refuse."""
        if func is torch.ops.aten._to_copy.default:
            return _placeless(args[0].device.type, kwargs["dtype"])
        raise NotImplementedError(f"expected a cast, got {func} of {len(types)} kinds of tensor")


def _placeless(backend: str, dtype: torch.dtype) -> torch.Tensor:
    make = torch.Tensor._make_wrapper_subclass
    return make(_Placeless, (1, 1), dtype=dtype, device=torch.device(backend))


def _argument(kind: str, tensor: Callable[[], torch.Tensor]) -> object:
    """Return a value that the dispatcher accepts for a schema type; the operator itself is never run."""
    plain: dict[str, object] = {"int": 1, "SymInt": 1, "float": 1.0, "number": 1, "bool": False, "str": ""}
    if kind in {"Tensor", "Optional[Tensor]"}:
        return tensor()
    if kind == "List[Tensor]":
        return [tensor(), tensor()]
    if kind.startswith("List["):
        inner = plain.get(kind[5:-1])
        return [] if inner is None else [inner, inner]
    return plain.get(kind)


@contextmanager
def _intercepted(backend: str, name: str) -> Iterator[list[Forwarded]]:
    """Stop every overload of the operator between autocast and autograd, and list what arrives there."""
    seen: list[Forwarded] = []

    def catch(variant: str, *args: object, **kwargs: object) -> None:
        values = [*args, *kwargs.values()]
        tensors = [item for value in values for item in (value if isinstance(value, list) else [value])]
        dtypes = tuple(item.dtype for item in tensors if isinstance(item, torch.Tensor))
        chosen = next((value for value in values if isinstance(value, torch.dtype)), None)
        seen.append(Forwarded(variant, dtypes, chosen))
        raise _Stop

    packet = name.partition(".")[0]
    variants = [
        f"{packet}.{schema.overload_name}".removesuffix(".")
        for schema in torch._C._jit_get_schemas_for_operator(packet)
        if not any(slot.is_out for slot in schema.arguments)
    ]
    library = install(
        f"Autograd{backend.upper()}", {full: functools.partial(catch, full) for full in variants}
    )
    try:
        yield seen
    finally:
        remove(library)
