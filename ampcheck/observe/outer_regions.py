"""Regions that a script has entered when it asks for an audit, as autocast's: they are none of the audit's."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from ampcheck.observe.cuda_on_cpu.casting import weight_casts
from ampcheck.observe.patches import Patches

_DEVICES = ("cpu", "cuda")


@contextmanager
def outside_of_inference() -> Iterator[None]:
    """Run as where `torch.inference_mode` is not in force: a step's tensors have a backward."""
    with torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext():
        yield


@contextmanager
def outside_of_autocast() -> Iterator[None]:
    """Run as where no region is in force; then regions go on as they were, with the casts of weights that they keep.

    Where there is a GPU they cast again: nothing there separates torch's own casts from those of the audit.
    """
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    if not depth:
        yield
        return
    enabled = {device: torch.is_autocast_enabled(device) for device in _DEVICES}
    patches = Patches()
    if not torch.cuda.is_initialized():
        patches.set(torch, "clear_autocast_cache", weight_casts.forget)
    _nest(-depth)
    try:
        with weight_casts.set_aside():
            for device in _DEVICES:
                torch.set_autocast_enabled(device, False)  # noqa: FBT003  # torch's own
            yield
    finally:
        for device, was in enabled.items():
            torch.set_autocast_enabled(device, was)
        _nest(depth)
        patches.restore()


def _nest(by: int) -> None:
    for _ in range(abs(by)):
        if by > 0:
            torch.autocast_increment_nesting()
        else:
            torch.autocast_decrement_nesting()
