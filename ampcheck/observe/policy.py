"""Which dtype autocast runs each operator in, read from the installed torch.

Two sources, both in every build, with or without a GPU: the operator lists in `ATen/autocast_mode.h`, and the
dispatcher, which knows what is really registered. What the lists leave open is measured: the registered kernel
is called on tensors without storage that claim to be on that device, and what it hands on is looked at.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ampcheck.observe.dispatcher import install, remove

_KEYS = {"cuda": "CUDA", "xpu": "XPU", "mps": "MPS"}
# Backends whose kernels are instantiated from the header's lists; MPS has a hand-written list of its own.
_LISTED = frozenset({"cuda", "xpu"})


class CastPolicy(StrEnum):
    """What an autocast kernel does to the arguments of its operator."""

    LOWER = "lower"
    """Every eligible tensor is cast to the autocast dtype."""
    FP32 = "fp32"
    """Every eligible tensor is cast to float32."""
    FP32_SET_DTYPE = "fp32_set_dtype"
    """A float32 result is asked for, unless the caller chose a dtype or the first tensor is not eligible."""
    FP32_APPEND_DTYPE = "fp32_append_dtype"
    """The overload with a result dtype is called, with float32 if the first tensor is eligible."""
    PROMOTE = "promote"
    """Every eligible tensor is cast to the widest dtype among them."""
    HALF = "half"
    """Every eligible tensor is cast to float16, whatever the autocast dtype (cuDNN's recurrent kernels)."""
    BANNED = "banned"
    """The operator raises."""


_HEADER_LISTS = {
    "LOWER_PRECISION_FP": CastPolicy.LOWER,
    "FP32": CastPolicy.FP32,
    "FP32_SET_OPT_DTYPE": CastPolicy.FP32_SET_DTYPE,
    "DIFFERENT_REDISPATCH_SIGNATURE": CastPolicy.FP32_APPEND_DTYPE,
    "PROMOTE": CastPolicy.PROMOTE,
}

_STATED = {
    "aten::_cudnn_rnn": (
        CastPolicy.HALF,
        "stated: copies float32 weights into one flat float16 buffer, which needs a GPU, so this cannot be measured; "
        "with float16 weights it can, and input and states are cast to float16 under bfloat16 autocast too",
    ),
}


def casting_policy(backend: str = "cuda") -> Mapping[str, CastPolicy]:
    """Return the policy of every operator that `backend`'s autocast treats specially, by qualified overload."""
    listed, settled, _ = _reconciled(backend, registered(backend))
    return MappingProxyType(listed | {name: policy for name, (policy, _) in settled.items()})


def derived(backend: str = "cuda") -> Mapping[str, str]:
    """Return, for each operator that the header does not list for `backend`, how its policy is known."""
    return MappingProxyType(
        {name: why for name, (_, why) in _reconciled(backend, registered(backend))[1].items()}
    )


def unexplained(backend: str = "cuda") -> frozenset[str]:
    """Return the registered operators whose policy is not known."""
    return _reconciled(backend, registered(backend))[2]


def registered(backend: str) -> frozenset[str]:
    """Return the `aten` overloads that have a kernel of their own on `backend`'s autocast key."""
    if backend not in {*_KEYS, "cpu"}:
        raise ValueError(f"expected one of {sorted(_KEYS)}, got backend {backend!r}")
    found = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{backend.upper()}")  # noqa: SLF001
    return frozenset(name.removesuffix(".") for name in found if name.startswith("aten::"))


@functools.cache
def _reconciled(
    backend: str, names: frozenset[str]
) -> tuple[dict[str, CastPolicy], dict[str, tuple[CastPolicy, str]], frozenset[str]]:
    header = header_policy() if backend in _LISTED else {}
    listed = {name: policy for name, policy in header.items() if name in names}
    settled, left = {}, set()
    for name in sorted(names - listed.keys()):
        answer = measured_policy(backend, name)
        if answer is not None:
            settled[name] = (answer, f"measured: called on {backend} tensors without storage")
        elif name in _STATED:
            settled[name] = _STATED[name]
        else:
            left.add(name)
    return listed, settled, frozenset(left)


@functools.cache
def header_policy() -> Mapping[str, CastPolicy]:
    """Return the operator lists of the installed `ATen/autocast_mode.h`."""
    path = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for title, policy in _HEADER_LISTS.items():
        body = re.search(rf"#define AT_FORALL_{title}\(_\)(.*)", text)
        if body is None:
            continue
        if policy is CastPolicy.FP32_APPEND_DTYPE:
            names = re.findall(r'"([\w.]+)"', body[1])
        else:
            names = [
                ".".join(filter(None, entry)) for entry in re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", body[1])
            ]
        found.update(dict.fromkeys((f"aten::{name}" for name in names), policy))
    return MappingProxyType(found)


def overload(name: str) -> torch._ops.OpOverload:
    """Return the operator called `name`, such as `aten::norm.Scalar`."""
    packet, _, variant = name.removeprefix("aten::").partition(".")
    found = getattr(getattr(torch.ops.aten, packet), variant or "default")
    assert isinstance(found, torch._ops.OpOverload)
    return found


def refusal(backend: str, name: str) -> str:
    """Return what `backend`'s autocast says when the banned operator `name` is called."""
    try:
        _probe(backend, name, (torch.float32, torch.float32))
    except RuntimeError as error:
        return str(error)
    raise ValueError(f"expected an operator that autocast bans on {backend}, got {name!r}")


class _Forwarded(NamedTuple):
    """What an autocast kernel handed to the next dispatch key."""

    overload: str
    tensors: tuple[torch.dtype, ...]
    chosen: torch.dtype | None


class _Stop(BaseException):  # noqa: N818
    """Ends a probe as soon as the kernel has handed on its arguments."""


class _Placeless(torch.Tensor):
    """A tensor without storage that claims a device; it can be cast and nothing else."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001
    backend: ClassVar[str] = ""

    @staticmethod
    def on(backend: str, dtype: torch.dtype) -> "_Placeless":
        """Return a 1x1 tensor of `dtype` on `backend`."""
        make = torch.Tensor._make_wrapper_subclass  # noqa: SLF001
        return make(_Placeless, (1, 1), dtype=dtype, device=backend)  # type: ignore[no-any-return, attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG003
        if func is torch.ops.aten._to_copy.default:  # noqa: SLF001
            return cls.on(args[0].device.type, kwargs["dtype"])
        raise NotImplementedError(f"expected a cast, got {func}")


def measured_policy(backend: str, name: str) -> CastPolicy | None:
    """Return the policy that the kernel registered for `name` shows on `backend`, None if it shows none known."""
    low, wide = torch.float16, torch.float32
    try:
        halves, floats, mixed = (
            _probe(backend, name, dtypes) for dtypes in ((low, low), (wide, wide), (low, wide))
        )
    except RuntimeError as refusal:
        return CastPolicy.BANNED if "unsafe to autocast" in str(refusal) else None
    if halves.chosen is wide:
        same = halves.overload == name
        return CastPolicy.FP32_SET_DTYPE if same else CastPolicy.FP32_APPEND_DTYPE
    return _BY_DTYPES.get(tuple(frozenset(found.tensors) for found in (halves, floats, mixed)))


# What reaches the next key when all tensors are half, all are float, and the first is half and the rest float.
_HALF, _FLOAT = frozenset({torch.float16}), frozenset({torch.float32})
_BY_DTYPES = {
    (_HALF, _HALF, _HALF): CastPolicy.LOWER,
    (_FLOAT, _FLOAT, _FLOAT): CastPolicy.FP32,
    (_HALF, _FLOAT, _FLOAT): CastPolicy.PROMOTE,
}


def _probe(backend: str, name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> _Forwarded:
    """Call `name` under `backend`'s autocast, first tensor of `dtypes[0]`, others of `dtypes[1]`; say what it did."""
    op = overload(name)
    supply = itertools.chain([dtypes[0]], itertools.repeat(dtypes[1]))
    arguments = [
        _argument(str(slot.type), lambda: _Placeless.on(backend, next(supply)))
        for slot in op._schema.arguments
        if not slot.kwarg_only
    ]
    with _disable_current_modes(), _intercepted(backend, name) as seen, _autocast(backend):
        try:
            op(*arguments)
        except _Stop:
            return seen[0]
    raise RuntimeError(f"expected {name} to reach autograd on {backend}, it returned; report this operator")


def _argument(kind: str, tensor: Callable[[], torch.Tensor]) -> object:
    """Return a value that the dispatcher accepts for a schema type; the operator itself is never run."""
    plain = {"int": 1, "SymInt": 1, "float": 1.0, "number": 1, "bool": False, "str": ""}
    if kind in {"Tensor", "Optional[Tensor]"}:
        return tensor()
    if kind == "List[Tensor]":
        return [tensor(), tensor()]
    if kind.startswith("List["):
        inner = plain.get(kind[5:-1])
        return [] if inner is None else [inner, inner]
    return plain.get(kind)


@contextmanager
def _intercepted(backend: str, name: str) -> Iterator[list[_Forwarded]]:
    """Stop every overload of the operator between autocast and autograd, and list what arrives there."""
    seen: list[_Forwarded] = []

    def catch(variant: str, *args: object, **kwargs: object) -> None:
        values = [*args, *kwargs.values()]
        tensors = [item for value in values for item in (value if isinstance(value, list) else [value])]
        dtypes = tuple(item.dtype for item in tensors if isinstance(item, torch.Tensor))
        chosen = next((value for value in values if isinstance(value, torch.dtype)), None)
        seen.append(_Forwarded(variant, dtypes, chosen))
        raise _Stop

    packet = name.partition(".")[0]
    variants = {
        f"{packet}.{schema.overload_name}".removesuffix("."): schema
        for schema in torch._C._jit_get_schemas_for_operator(packet)
        if not any(slot.is_out for slot in schema.arguments)
    }
    library = install(
        f"Autograd{backend.upper()}", {full: functools.partial(catch, full) for full in variants}
    )
    try:
        yield seen
    finally:
        remove(library)


@contextmanager
def _autocast(backend: str) -> Iterator[None]:
    """Turn `backend`'s autocast on without the checks that refuse a missing device."""
    before = torch.is_autocast_enabled(backend), torch.get_autocast_dtype(backend)
    torch.set_autocast_enabled(backend, True)  # noqa: FBT003
    torch.set_autocast_dtype(backend, torch.float16)
    try:
        yield
    finally:
        torch.set_autocast_enabled(backend, before[0])
        torch.set_autocast_dtype(backend, before[1])
