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

import torch

from ampcheck.observe.cuda_on_cpu.probing import forwarded


class CastPolicy(StrEnum):
    """What an autocast kernel does to the arguments of its operator."""

    LOWER = "lower"  #: every eligible tensor is cast to the autocast dtype
    FP32 = "fp32"  #: every eligible tensor is cast to float32
    #: A float32 result is asked for, unless the caller chose a dtype or the first tensor is not eligible.
    FP32_SET_DTYPE = "fp32_set_dtype"
    #: The overload with a result dtype is called, with float32 if the first tensor is eligible.
    FP32_APPEND_DTYPE = "fp32_append_dtype"
    PROMOTE = "promote"  #: every eligible tensor is cast to the widest dtype among them
    HALF = "half"  #: every eligible tensor is cast to float16, whatever the autocast dtype: cuDNN's recurrent kernels
    BANNED = "banned"  #: the operator raises


_NAMED = re.compile(r"\.(names_|\w*dimname)", re.IGNORECASE)
_HEADER_LISTS = {
    "LOWER_PRECISION_FP": CastPolicy.LOWER,
    "FP32": CastPolicy.FP32,
    "FP32_SET_OPT_DTYPE": CastPolicy.FP32_SET_DTYPE,
    "DIFFERENT_REDISPATCH_SIGNATURE": CastPolicy.FP32_APPEND_DTYPE,
    "PROMOTE": CastPolicy.PROMOTE,
}

# What cannot be measured without a GPU: this kernel copies float32 weights into one flat buffer first. With float16
# weights it can be measured, and casts the rest to float16 under bfloat16, too.
_STATED = {"aten::_cudnn_rnn": CastPolicy.HALF}


def casting_policy() -> Mapping[str, CastPolicy]:
    """Return the policy of every operator that CUDA's autocast treats specially, by overload."""
    return _known(registered("cuda"))


def registered(backend: str) -> frozenset[str]:
    """Return the `aten` overloads that have a kernel of their own on `backend`'s autocast key.

    Without those for named tensors, a prototype that torch has since removed: Python cannot receive names.
    """
    found = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{backend.upper()}")
    names = (name.removesuffix(".") for name in found if name.startswith("aten::"))
    return frozenset(name for name in names if not _NAMED.search(name))


@functools.cache
def _known(names: frozenset[str]) -> Mapping[str, CastPolicy]:
    header = header_policy()
    found = {name: header.get(name) or measured_policy(name) or _STATED.get(name) for name in sorted(names)}
    return MappingProxyType({name: policy for name, policy in found.items() if policy is not None})


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


def measured_policy(name: str) -> CastPolicy | None:
    """Return the policy that CUDA's kernel for `name` shows, None if it shows none of them."""
    try:
        low, wide, mixed = (forwarded("cuda", name, dtypes) for dtypes in ((_LOW,), (_WIDE,), (_LOW, _WIDE)))
    except RuntimeError as error:
        return CastPolicy.BANNED if "unsafe to autocast" in str(error) else None
    if low.chosen is _WIDE:
        return CastPolicy.FP32_SET_DTYPE if low.name == name else CastPolicy.FP32_APPEND_DTYPE
    return _BY_DTYPES.get((frozenset(low.tensors), frozenset(wide.tensors), frozenset(mixed.tensors)))


def refusal(name: str) -> str:
    """Return what CUDA's autocast says when the banned operator `name` is called."""
    try:
        forwarded("cuda", name, (_WIDE,))
    except RuntimeError as error:
        return str(error)
    raise ValueError(f"expected an operator that autocast bans on cuda, got {name!r}")
