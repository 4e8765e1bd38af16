"""Which dtype autocast runs each operator in, read from the installed torch.

Two sources, both in every build, with or without a GPU: the operator lists in `ATen/autocast_mode.h`, and the
dispatcher, which knows what is really registered. What the lists leave open is measured (`probing`).
"""

import functools
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from ampcheck.observe.cuda_on_cpu.probing import forwarded

BACKENDS = ("cuda", "xpu", "mps")
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


_NAMED = re.compile(r"\.(names_|\w*dimname)", re.IGNORECASE)
_HEADER_LISTS = {
    "LOWER_PRECISION_FP": CastPolicy.LOWER,
    "FP32": CastPolicy.FP32,
    "FP32_SET_OPT_DTYPE": CastPolicy.FP32_SET_DTYPE,
    "DIFFERENT_REDISPATCH_SIGNATURE": CastPolicy.FP32_APPEND_DTYPE,
    "PROMOTE": CastPolicy.PROMOTE,
}

# What cannot be measured without a GPU: this kernel copies float32 weights into one flat buffer first.
_STATED = {
    "aten::_cudnn_rnn": (
        CastPolicy.HALF,
        "stated: with float16 weights it can be measured, and casts the rest to float16 under bfloat16, too",
    ),
}


class _Known(NamedTuple):
    """The operators that one back end's autocast treats specially."""

    policies: Mapping[str, CastPolicy]
    derived: Mapping[str, str]
    unexplained: frozenset[str]


def casting_policy(backend: str = "cuda") -> Mapping[str, CastPolicy]:
    """Return the policy of every operator that `backend`'s autocast treats specially, by overload."""
    return _known(backend, registered(backend)).policies


def derived(backend: str = "cuda") -> Mapping[str, str]:
    """Return, for each operator that the header does not list for `backend`, how its policy is known."""
    return _known(backend, registered(backend)).derived


def unexplained(backend: str = "cuda") -> frozenset[str]:
    """Return the registered operators whose policy is not known."""
    return _known(backend, registered(backend)).unexplained


def registered(backend: str) -> frozenset[str]:
    """Return the `aten` overloads that have a kernel of their own on `backend`'s autocast key.

    Without those for named tensors, a prototype that torch has since removed: Python cannot receive names.
    """
    names = _on_key(backend)
    return frozenset(name for name in names if name.startswith("aten::") and not _NAMED.search(name))


def foreign(backend: str = "cuda") -> frozenset[str]:
    """Return other libraries' operators that `backend`'s autocast treats specially and the CPU's does not.

    Their kernels are not reproduced: on CPU tensors these operators run in the dtypes they are given.
    """
    return frozenset(name for name in _on_key(backend) - _on_key("cpu") if not name.startswith("aten::"))


def _on_key(backend: str) -> frozenset[str]:
    if backend not in {*BACKENDS, "cpu"}:
        raise ValueError(f"expected one of {', '.join(BACKENDS)}, got backend {backend!r}")
    key = f"Autocast{backend.upper()}"
    found = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return frozenset(name.removesuffix(".") for name in found)


@functools.cache
def _known(backend: str, names: frozenset[str]) -> _Known:
    header = header_policy() if backend in _LISTED else {}
    policies, reasons, left = {}, {}, set()
    for name in sorted(names):
        if name in header:
            policies[name] = header[name]
        elif (found := measured_policy(backend, name)) is not None:
            policies[name], reasons[name] = found, f"measured on {backend} tensors without storage"
        elif name in _STATED:
            policies[name], reasons[name] = _STATED[name]
        else:
            left.add(name)
    return _Known(MappingProxyType(policies), MappingProxyType(reasons), frozenset(left))


@functools.cache
def header_policy() -> Mapping[str, CastPolicy]:
    """Return the operator lists of the installed `ATen/autocast_mode.h`, none where it is missing."""
    path = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not path.is_file():
        return MappingProxyType({})
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for title, policy in _HEADER_LISTS.items():
        body = re.search(rf"#define AT_FORALL_{title}\(_\)(.*)", text)
        if body is None:
            continue
        if policy is CastPolicy.FP32_APPEND_DTYPE:
            names = re.findall(r'"([\w.]+)"', body[1])
        else:
            entries = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", body[1])
            names = [".".join(filter(None, entry)) for entry in entries]
        found.update({f"aten::{name}": policy for name in names if not _NAMED.search(name)})
    return MappingProxyType(found)


_LOW, _WIDE = torch.float16, torch.float32
_ALL_LOW, _ALL_WIDE = frozenset({_LOW}), frozenset({_WIDE})
# The dtypes that are handed on when all tensors are low, when all are wide, and when both alternate.
_BY_DTYPES = {
    (_ALL_LOW, _ALL_LOW, _ALL_LOW): CastPolicy.LOWER,
    (_ALL_WIDE, _ALL_WIDE, _ALL_WIDE): CastPolicy.FP32,
    (_ALL_LOW, _ALL_WIDE, _ALL_WIDE): CastPolicy.PROMOTE,
}


def measured_policy(backend: str, name: str) -> CastPolicy | None:
    """Return the policy that `backend`'s kernel for `name` shows, None if it shows none of them."""
    try:
        low, wide, mixed = (forwarded(backend, name, dtypes) for dtypes in ((_LOW,), (_WIDE,), (_LOW, _WIDE)))
    except RuntimeError as error:
        return CastPolicy.BANNED if "unsafe to autocast" in str(error) else None
    if low.chosen is _WIDE:
        return CastPolicy.FP32_SET_DTYPE if low.name == name else CastPolicy.FP32_APPEND_DTYPE
    return _BY_DTYPES.get((frozenset(low.tensors), frozenset(wide.tensors), frozenset(mixed.tensors)))


def refusal(backend: str, name: str) -> str:
    """Return what `backend`'s autocast says when the banned operator `name` is called."""
    try:
        forwarded(backend, name, (_WIDE,))
    except RuntimeError as error:
        return str(error)
    raise ValueError(f"expected an operator that autocast bans on {backend}, got {name!r}")
