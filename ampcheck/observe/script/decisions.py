"""Numbers in half precision by which a script decides between its steps: which model is best, whether to go on.

Such a number, as a score, stands still where it improves by less than half a unit in the last place.
"""

from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import Args
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.source import running_line
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.wording import percent, plural

#: Comparisons that ask for the larger of two numbers, and for the smaller.
_LARGER, _SMALLER = frozenset({"gt", "ge"}), frozenset({"lt", "le"})


#: Evaluations in which a number that is read stands still and FP32's improves, from which on that is no chance.
_SEVERAL = 2


class Decisions:
    """Comparisons of one number in half precision that an evaluation has just made with another one.

    And the numbers in half precision that it gives to Python, or keeps: the script may decide by them later.
    """

    def __init__(self) -> None:
        """Begin with none."""
        #: By line, and whether the number is to be the larger one: what it was, and FP32's.
        self._found: dict[tuple[str, int, bool], list[tuple[float, float]]] = {}
        #: The same of what it reads or keeps, by line.
        self._others: dict[tuple[str, str, int], list[tuple[float, float]]] = {}

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._found or self._others)

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

    def reads(self, number: Any, references: Shadow) -> None:
        """Take note of a number that is read."""
        self._add("reads", running_line, number, references)

    def keeps(self, number: torch.Tensor, references: Shadow, place: tuple[str, int]) -> None:
        """Take note of a number that was made at some place, and is there when the evaluation ends."""
        self._add("keeps", lambda: place, number, references)

    def _add(self, how: str, place: Callable[[], tuple[str, int]], number: Any, references: Shadow) -> None:
        if _is_number(number) and (wide := _wide(number, references)) is not None:
            self._others.setdefault((how, *place()), []).append((float(number), wide))

    def missed(self, *, whole: bool) -> Iterator[str]:
        """Yield where FP32 would decide otherwise, or nobody knows as not the `whole` of the script was followed."""
        for (file, line, larger), numbers in self._found.items():
            begins = f"the script decides at {Path(file).name}:{line} by a number in half precision"
            if still := _still(numbers, larger=larger):
                yield f"{begins}, which stands still in {plural(still, 'evaluation')} in which FP32's improves"
            elif not whole:
                yield f"{begins}: whether it would by FP32's was not judged"
        for (how, file, line), numbers in self._others.items():
            begins = f"the script {how} at {Path(file).name}:{line} a number in half precision"
            still = max(_still(numbers, larger=larger) for larger in (True, False))
            off = max(abs(low - wide) / abs(wide) if wide else 0.0 for low, wide in numbers)
            if still >= _SEVERAL:
                yield f"{begins}, which stands still in {plural(still, 'evaluation')} in which FP32's improves"
            elif HARM_ERROR < off < inf:
                yield f"{begins}, which is {percent(off)} off: whether that matters was not judged"


def _is_number(given: object) -> bool:
    return given.numel() == 1 if isinstance(given, torch.Tensor) else isinstance(given, (int, float))


def _wide(given: object, references: Shadow) -> float | None:
    wide = references.of(given) if isinstance(given, torch.Tensor) and given.dtype in HALVES else None
    return None if wide is None else float(wide)


def _still(numbers: list[tuple[float, float]], *, larger: bool) -> int:
    """Return how often a number is the same as its best one, where FP32's is better than all before it."""
    sign, still = 1 if larger else -1, 0
    best = [-inf, -inf]
    for pair in numbers:
        low, wide = (sign * one for one in pair)
        still += low == best[0] and wide > best[1]
        best = [max(low, best[0]), max(wide, best[1])]
    return still
