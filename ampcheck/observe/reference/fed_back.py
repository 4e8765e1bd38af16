"""Numbers in FP32 that a script adds to in place, by what half precision has computed of the same numbers.

As a matrix that is kept by products of itself: FP32 has it as the script does when the next step begins, so errors that
are small in one step and add up are seen in none.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable
from ampcheck.values.op_kinds import CASTS
from ampcheck.values.wording import some

#: What is not audited, behind the line.
FED_BACK = (
    "FP32 numbers are updated by half-precision copies of them: whether the errors add up was not judged"
)
_ADDS = frozenset("add_ sub_ addr_ addmm_ addmv_ addbmm_ baddbmm_ addcmul_ addcdiv_ index_add_ lerp_".split())


class FedBack:
    """Finds such numbers among those that were there when the step began, where no gradients are wanted."""

    def __init__(self) -> None:
        self.was_there: Callable[[int], bool] = lambda _: False
        self._cast: set[int] = set()  #: storages
        self._lines: dict[str, None] = {}

    def note(self, name: str, values: Sequence[Any], targets: Sequence[torch.Tensor]) -> None:
        """Take note of an operation."""
        if torch.is_grad_enabled() or not (name in CASTS or name in _ADDS):
            return
        changed = targets[0] if name in _ADDS and targets else values[0]
        if (
            not isinstance(changed, torch.Tensor)
            or changed.dtype is not torch.float32
            or not readable(changed)
        ):
            return
        place = changed.untyped_storage()._cdata
        if name in _ADDS and place in self._cast:
            file, line = running_line()
            self._lines[f"{Path(file).name}:{line}"] = None
        elif name in CASTS and self.was_there(place) and _names_half(values):
            self._cast.add(place)

    def missed(self) -> dict[str, int]:
        """Return what is not audited."""
        return {f"{some([*self._lines], 2)}: {FED_BACK}": len(self._lines)} if self._lines else {}


def _names_half(values: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.dtype) and value in HALVES for value in values)
