"""Numbers in half precision by which a script decides between its steps: which model is best, whether to go on.

Such a number, as a score, stands still where it improves by less than half a unit in the last place.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import Args
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.source import running_line
from ampcheck.values.wording import plural

#: Comparisons that ask for the larger of two numbers, and for the smaller.
_LARGER, _SMALLER = frozenset({"gt", "ge"}), frozenset({"lt", "le"})


class Decisions:
    """Comparisons of one number in half precision that an evaluation has just made with another one."""

    def __init__(self) -> None:
        """Begin with none."""
        #: By line, and whether the number is to be the larger one: what it was, and FP32's.
        self._found: dict[tuple[str, int, bool], list[tuple[float, float]]] = {}

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._found)

    def note(self, name: str, args: Args, references: Shadow) -> None:
        """Take note of an operation, which may be a comparison."""
        if name not in _LARGER | _SMALLER or not all(_is_number(one) for one in args[:2]):
            return
        known = [
            (at, one, wide) for at, one in enumerate(args[:2]) if (wide := _wide(one, references)) is not None
        ]
        if len(known) == 1:  # the other one was kept
            [(at, number, wide)] = known
            key = (*running_line(), (name in _LARGER) is (at == 0))
            self._found.setdefault(key, []).append((float(number), wide))

    def missed(self, *, whole: bool) -> Iterator[str]:
        """Yield where FP32 would decide otherwise, or nobody knows as not the `whole` of the script was followed."""
        for (file, line, larger), numbers in self._found.items():
            low, wide = (_improves([pair[at] for pair in numbers], larger=larger) for at in (0, 1))
            unseen = sum(one and not other for one, other in zip(wide, low, strict=True))
            begins = f"the script decides at {Path(file).name}:{line} by a number in half precision"
            if unseen:
                yield f"{begins}, which stands still in {plural(unseen, 'evaluation')} in which FP32's improves"
            elif not whole:
                yield f"{begins}: whether it would by FP32's was not judged"


def _is_number(given: object) -> bool:
    return given.numel() == 1 if isinstance(given, torch.Tensor) else isinstance(given, (int, float))


def _wide(given: object, references: Shadow) -> float | None:
    wide = references.of(given) if isinstance(given, torch.Tensor) and given.dtype in HALVES else None
    return None if wide is None else float(wide)


def _improves(numbers: list[float], *, larger: bool) -> list[bool]:
    """Tell of each number but the first whether it is better than all before it."""
    best = numbers[:1]
    for number in numbers[1:]:
        better = number > best[-1] if larger else number < best[-1]
        best.append(number if better else best[-1])
    return [after != before for before, after in pairwise(best)]
