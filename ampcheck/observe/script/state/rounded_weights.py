"""Weights in FP32 that an evaluation computes with, and that hold numbers of half precision, where training does not.

They come from where nobody looks: averages that a script keeps in arrays or bytes, for one.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable, tensors_of, version_of

#: Elements that are looked at first: next to no FP32 numbers are ones of half precision by chance.
_FEW = 64


class RoundedWeights:
    """Looks at what has the shape of trained weights."""

    def __init__(self) -> None:
        """Begin with none."""
        self._seen: set[tuple[int, int]] = set()  #: storages, and how often these were written
        self.trained: dict[
            torch.Size, list[torch.Tensor]
        ] = {}  #: weights that lie in FP32 in training, by shape
        self.found: dict[tuple[str, int], None] = {}  #: lines that compute with rounded ones

    def knows(self, trained: Iterable[torch.Tensor]) -> None:
        """Begin an evaluation, with what is trained."""
        self._seen.clear()
        self.trained.clear()
        for weight in trained:
            if weight.dim() > 1 and weight.dtype is torch.float32 and readable(weight):
                self.trained.setdefault(weight.shape, []).append(weight)

    def look(self, args: tuple[Any, ...]) -> None:
        """Look at what an operation has read, or written."""
        for tensor in tensors_of(args) if self.trained else ():
            if tensor.dtype is not torch.float32 or tensor.dim() < 2 or not readable(tensor):  # noqa: PLR2004
                continue
            shape = (
                tensor.shape if tensor.shape in self.trained else tensor.shape[::-1]
            )  # of a matrix, transposed
            place = tensor.untyped_storage()._cdata, version_of(tensor)
            if shape not in self.trained or place in self._seen:
                continue
            self._seen.add(place)
            if _is_rounded(tensor.detach()) and not any(_is_of(tensor, one) for one in self.trained[shape]):
                self.found.setdefault(running_line(), None)

    def missed(self) -> Iterable[str]:
        """Yield where there were some."""
        for file, line in list(self.found)[:1]:
            begins = f"the weights used at {Path(file).name}:{line} were rounded to half precision"
            yield f"{begins}, and those that are trained were not: what has rounded them was not seen"


def _is_rounded(tensor: torch.Tensor) -> bool:
    """Tell whether all numbers are ones of half precision, and no whole ones, as counts are."""
    first = tensor.flatten()[:_FEW]
    for dtype in HALVES:
        for part in (first, tensor):
            if not torch.equal(part.to(dtype).to(part.dtype), part):
                break
        else:
            return not torch.equal(tensor, tensor.round())
    return False


def _is_of(tensor: torch.Tensor, weight: torch.Tensor) -> bool:
    """Tell whether a tensor holds the numbers of a weight as they are now, rounded."""
    held = weight.detach()
    if held.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
        return False
    given = tensor if tensor.shape == held.shape else tensor.mT
    return any(torch.equal(held.to(dtype).to(held.dtype), given) for dtype in HALVES)
