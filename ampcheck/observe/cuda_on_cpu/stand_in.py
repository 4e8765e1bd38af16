"""A CPU that stands in for CUDA: what the user's code says about autocast on "cuda" is meant for the CPU."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.amp import autocast_mode
from torch.amp.autocast_mode import autocast


@contextmanager
def autocast_stands_in(device: str = "cpu", *, enabled: bool = True) -> Iterator[None]:
    """Let autocast regions and queries for "cuda" in the user's code act on `device`.

    With `enabled=False` every autocast region is off, whatever it asks for: the FP32 run.
    """
    with ExitStack() as stack:

        def patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            original = owner.__dict__[name]
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, make(original))

        patch(autocast, "__init__", lambda original: _region(original, device, enabled=enabled))
        if device == "cpu":
            patch(autocast, "__enter__", _keeping_its_own)
            patch(torch, "is_autocast_enabled", _on_cpu)
            patch(torch, "get_autocast_dtype", _on_cpu)
            # What torch.amp.custom_fwd casts inputs with: it asks for tensors on its own device.
            patch(autocast_mode, "_cast", _as_cpu)
            patch(torch, "get_autocast_gpu_dtype", lambda _: lambda: torch.get_autocast_dtype("cpu"))
        yield


def _region(original: Callable[..., None], device: str, *, enabled: bool) -> Callable[..., None]:
    def __init__(  # noqa: N807  # it takes the place of one
        self: autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,  # noqa: FBT001, FBT002  # torch's own signature
        cache_enabled: bool | None = None,  # noqa: FBT001
    ) -> None:
        if device == "cpu" and str(device_type).partition(":")[0] == "cuda":
            # Without a dtype CUDA means half, the CPU bfloat16.
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cpu")
        original(self, device_type, dtype, enabled and allowed, cache_enabled)

    allowed = enabled
    return __init__


def _keeping_its_own(original: Callable[[autocast], Any]) -> Callable[[autocast], Any]:
    """Let a region made before the stand-in, as a decorator is, put back its own device's state on leaving."""
    enabled: Callable[[str], bool] = getattr(torch.is_autocast_enabled, "own", torch.is_autocast_enabled)
    dtype: Callable[[str], torch.dtype] = getattr(torch.get_autocast_dtype, "own", torch.get_autocast_dtype)

    def __enter__(self: autocast) -> Any:  # noqa: N807  # it takes the place of one
        held, held_dtype = enabled(self.device), dtype(self.device)
        entered = original(self)
        self.prev, self.prev_fastdtype = held, held_dtype
        return entered

    return __enter__


def _on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    def query(device_type: str = "cuda") -> Any:
        return original("cpu" if device_type == "cuda" else device_type)

    query.own = getattr(original, "own", original)  # type: ignore[attr-defined]  # without any stand-in
    return query


def _as_cpu(original: Callable[[Any, str, torch.dtype], Any]) -> Callable[[Any, str, torch.dtype], Any]:
    def cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
        return original(value, "cpu" if device_type == "cuda" else device_type, dtype)

    return cast
