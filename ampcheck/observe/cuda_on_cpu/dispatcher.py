"""Kernels of ours in torch's dispatcher, for a while."""

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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


class Installation:
    """Kernels in the dispatcher as long as somebody uses them: the dispatcher is one for the process."""

    def __init__(self, kernels: Callable[[], Mapping[str, Mapping[str, Kernel]]]) -> None:
        """Take what returns the kernels, by dispatch key and operator."""
        self._kernels = kernels
        self._lock = threading.Lock()
        self._users = 0
        self._libraries: list[Library] = []

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have the kernels installed; nested and concurrent uses share them, and the last exit removes them."""
        with self._lock:
            if not self._users:
                self._install()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._remove()

    def _install(self) -> None:
        try:
            for key, kernels in self._kernels().items():
                self._libraries.append(install(key, kernels))
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        while self._libraries:
            remove(self._libraries.pop())
