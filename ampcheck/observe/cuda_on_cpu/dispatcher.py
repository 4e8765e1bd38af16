"""Kernels of ours in torch's dispatcher, for a while."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.library import Library

Kernel: TypeAlias = Callable[..., Any]
Operator: TypeAlias = torch._ops.OpOverload


def operator(name: str) -> Operator:
    """Return the operator called `name`, such as `aten::norm.Scalar`."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    found = getattr(getattr(torch.ops.aten, packet), overload or "default")
    assert isinstance(found, Operator)
    return found


def install(key: str, kernels: Mapping[str, Kernel]) -> Library:
    """Put `kernels`, by qualified `aten` overload, on a dispatch key; `remove` takes them away again."""
    library = Library("aten", "IMPL", key)
    try:
        with warnings.catch_warnings():
            # Said once per process by older versions, although the override is asked for.
            warnings.filterwarnings(
                "ignore", message="Warning only once for all operators", category=UserWarning
            )
            for name, kernel in kernels.items():
                library.impl(name.removeprefix("aten::"), kernel, allow_override=True)
    except BaseException:
        remove(library)
        raise
    return library


def remove(library: Library) -> None:
    """Take the kernels of `install` out; the ones they covered are back."""
    library._destroy()
