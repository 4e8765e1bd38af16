"""Kernels of ours in torch's dispatcher, for a while."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch.library import Library

Kernel = Callable[..., Any]


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
