"""Gradients that a script asks autograd for and goes on to compute with: how far they are from FP32's."""

from collections.abc import Callable, Iterable
from math import isfinite

import torch

from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable
from ampcheck.values.wording import location, percent

#: What is not audited, before the line and the error.
USE = "the use of gradients that autograd.grad returns"
#: Error of what is returned, as a part of FP32's, from which on it is said that its effect was not judged.
_FAR = 0.5


class Returned:
    """Compares what `torch.autograd.grad` returns within a step with FP32's."""

    def __init__(self) -> None:
        self._found: dict[str, torch.Tensor] = {}  #: by place: energies of the error and of FP32's gradients

    def note(self, grads: Iterable[object], of: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Take note of gradients; `of` returns FP32's, None where they are the same."""
        for grad in grads:
            wide = of(grad) if isinstance(grad, torch.Tensor) and readable(grad) else None
            if wide is None or not isinstance(grad, torch.Tensor):
                continue
            low, high = grad.detach().double(), wide.double()
            known = high.isfinite()
            parts = [(low - high).where(known, 0.0), high.where(known, 0.0)]
            sums = torch.stack([part.square().sum() for part in parts])
            place = location(*running_line())
            self._found[place] = self._found[place] + sums if place in self._found else sums

    @property
    def overflowed(self) -> bool:
        """Tell whether one is not finite that is finite in FP32."""
        return any(not isfinite(float(sums[0])) for sums in self._found.values())

    def missed(self) -> dict[str, int]:
        """Return what is not audited."""
        found = {place: sums.tolist() for place, sums in self._found.items()}
        return {
            f"{USE} at {place}, {_words(error, size)}": 1
            for place, (error, size) in found.items()
            if size and not error <= _FAR**2 * size
        }


def _words(error: float, size: float) -> str:
    return f"which are off by {percent((error / size) ** 0.5)}" if isfinite(error) else "which are not finite"
