"""A few numbers of a tensor, by which it is known whether it holds others now."""

import weakref
from typing import NamedTuple

import torch

from ampcheck.observe.script.recording import unseen
from ampcheck.observe.statistics.memory import readable


class Seen(NamedTuple):
    """A tensor as it was when memory was looked through."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    sample: torch.Tensor | None

    def differs(self, now: "Seen") -> bool:
        """Tell whether it was written since, or holds other numbers."""
        if now.version != self.version:
            return True
        if now.sample is None or self.sample is None:
            return False
        return not torch.equal(
            *(one.view(torch.int32) for one in (now.sample, self.sample))
        )  # a NaN is itself


def seen_now(tensor: torch.Tensor) -> Seen:
    """Return a tensor as it is."""
    return Seen(weakref.ref(tensor), tensor._version, sample(tensor))


def sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return some of a tensor's numbers, None where they lie apart; in FP32, or memory would be full of our own."""
    if not tensor.is_contiguous() or not readable(tensor):
        return None
    with unseen():
        flat = tensor.detach().view(-1)
        return flat[:: max(1, flat.numel() // 64)].to(torch.float32, copy=True)
