"""Numbers in half precision by which a script decides between its steps: which model is best, whether to go on.

Such a number, as a score, stands still where it improves by less than half a unit in the last place.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import Args
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.source import running_line
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.wording import percent, plural

#: A file and a line.
Place = tuple[str, int]
#: Comparisons that ask for the larger of two numbers, and for the smaller.
_LARGER, _SMALLER = frozenset({"gt", "ge"}), frozenset({"lt", "le"})
#: What a script does with a number at a line.
_DECIDES = "decides at {} by"
_NOT_JUDGED = "whether that matters was not judged"
_READS, _KEEPS = "reads at {}", "keeps at {}"
#: Evaluations in which a number that is read stands still and FP32's improves, from which on that is no chance.
_SEVERAL = 2
#: The same behind the last model that was kept, from which on another one would have been.
_MANY = 3
#: Error of a score in FP32, made of numbers in half precision, from which on it is no chance of a few answers.
_FAR_OFF = 0.3


class Misled(NamedTuple):
    """A score by which a script keeps its best model, and that has not shown better ones or is far off."""

    file: str  #: of the line that began to compute it in half precision
    line: int
    times: int  #: evaluations in which FP32's shows a better model, or in which it is far off
    off: float = 0.0  #: by how much, as a part of FP32's


@dataclass(slots=True)
class _Numbers:
    """What a line does with one number after the other, one in each evaluation."""

    larger: tuple[bool, ...]  #: whether it is to be the larger one; both where nobody knows
    made: Place  #: where half precision begins
    pairs: list[tuple[float, float]] = field(default_factory=list)  #: what it was, and FP32's
    saved: set[int] = field(default_factory=set)  #: evaluations behind which the script has kept its model

    def still(self) -> int:
        """Return how often a number is the same as its best one, where FP32's is better than all before it."""
        return max(
            sum(low[1] and wide[0] for low, wide in self._better(larger=larger)) for larger in self.larger
        )

    def off(self) -> float:
        """Return by how much one is off."""
        return max(abs(low - wide) / abs(wide) if wide else 0.0 for low, wide in self.pairs)

    def unseen(self) -> int:
        """Return in how many evaluations a better model was not kept, as it has been where the number was better."""
        for larger in self.larger:
            better = [(low[0], wide[0]) for low, wide in self._better(larger=larger)]
            seen = {at for at, (low, _) in enumerate(better) if low}
            last = better[max(seen, default=-1) + 1 :]
            times = sum(wide for _, wide in last)
            if self.saved and self.saved <= seen and times >= _MANY and 2 * times >= len(last):
                return times
        return 0

    def misleads(self) -> list[float]:
        """Return by how much it was far off in evaluations behind which the script kept the model that it shows."""
        best = [{at for at, (low, _) in enumerate(self._better(larger=one)) if low[0]} for one in self.larger]
        if not any(self.saved <= seen for seen in best):
            return []
        kept = (self.pairs[at] for at in self.saved)
        errors = [abs(low - wide) / abs(wide) for low, wide in kept if wide and isfinite(low - wide)]
        return [one for one in errors if one > _FAR_OFF]

    def _better(self, *, larger: bool) -> list[tuple[tuple[bool, bool], tuple[bool, bool]]]:
        """Tell of each number and of FP32's whether it is better than all before it, and the same as their best."""
        sign, best, found = 1 if larger else -1, (-inf, -inf), []
        for pair in self.pairs:
            now = sign * pair[0], sign * pair[1]
            low, wide = ((one > most, one == most) for one, most in zip(now, best, strict=True))
            found.append((low, wide))
            best = max(now[0], best[0]), max(now[1], best[1])
        return found


class Decisions:
    """Comparisons of one number in half precision that an evaluation has just made with another one.

    And the numbers in half precision that it gives to Python, or keeps: the script may decide by them later.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._found: dict[tuple[str, Place, tuple[bool, ...]], _Numbers] = {}
        self._scores: dict[Place, _Numbers] = {}  #: numbers in FP32 that are read, and made of half precision

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._found)

    def compares(self, name: str, args: Args, references: Shadow, made: Callable[[Any], Place]) -> None:
        """Take note of an operation, which may be a comparison; `made` says where half precision begins."""
        if name not in _LARGER | _SMALLER or not all(_is_number(one) for one in args[:2]):
            return
        known = [(at, one) for at, one in enumerate(args[:2]) if _wide(one, references) is not None]
        if len(known) == 1:  # the other one was kept
            [(at, number)] = known
            self._add(_DECIDES, running_line(), (number, references, made), ((name in _LARGER) is (at == 0),))

    def reads(self, number: Any, references: Shadow, made: Callable[[Any], Place]) -> None:
        """Take note of a number that is read."""
        if _is_number(number):
            self._add(_READS, running_line(), (number, references, made))

    def scores(self, low: float, wide: float, made: Place) -> None:
        """Take note of a number in FP32 that is read, and of FP32's own; half precision began at some place."""
        held = self._scores.setdefault(running_line(), _Numbers((True, False), made))
        held.pairs.append((low, wide))

    def keeps(self, number: torch.Tensor, references: Shadow, place: Place) -> None:
        """Take note of a number that was made at some place, and is there when the evaluation ends."""
        self._add(_KEEPS, place, (number, references, lambda _: place))

    def _add(
        self,
        how: str,
        place: Place,
        given: tuple[Any, Shadow, Callable[[Any], Place]],
        larger: tuple[bool, ...] = (True, False),
    ) -> None:
        number, references, made = given
        if (wide := _wide(number, references)) is not None:
            held = self._found.setdefault((how, place, larger), _Numbers(larger, made(number)))
            held.pairs.append((float(number), wide))

    def saved(self) -> None:
        """Take note of a model that the script keeps."""
        for (how, *_), held in self._found.items():
            if how != _KEEPS:  # these are told of when the evaluation is over
                held.saved.add(len(held.pairs) - 1)
        for held in self._scores.values():
            held.saved.add(len(held.pairs) - 1)

    def misled(self, *, chooses: bool) -> Iterator[Misled]:
        """Yield the scores that have not shown better models, or are far off where the script `chooses` by them."""
        for held in self._found.values():
            if times := held.unseen():
                yield Misled(*held.made, times)
        for held in self._scores.values() if chooses else ():
            if off := held.misleads():
                yield Misled(*held.made, len(off), max(off))

    def missed(self, *, whole: bool) -> Iterator[str]:
        """Yield where FP32 would decide otherwise, or nobody knows as not the `whole` of the script was followed."""
        for (how, (file, line), _), held in self._found.items():
            begins = f"the script {how.format(f'{Path(file).name}:{line}')} a number in half precision"
            still, off = held.still(), held.off()
            if still >= (1 if how == _DECIDES else _SEVERAL):
                yield f"{begins}, which stands still in {plural(still, 'evaluation')} in which FP32's improves"
            elif how == _DECIDES and not whole:
                yield f"{begins}: whether it would by FP32's was not judged"
            elif how != _DECIDES and HARM_ERROR < off < inf:
                yield f"{begins}, which is {percent(off)} off: {_NOT_JUDGED}"
        for (file, line), held in self._scores.items():
            if HARM_ERROR < (off := held.off()) < inf:
                reads = _READS.format(f"{Path(file).name}:{line}")
                yield f"the script {reads} a number made in half precision, which is {percent(off)} off: {_NOT_JUDGED}"


def _is_number(given: object) -> bool:
    return given.numel() == 1 if isinstance(given, torch.Tensor) else isinstance(given, (int, float))


def _wide(given: object, references: Shadow) -> float | None:
    wide = references.of(given) if isinstance(given, torch.Tensor) and given.dtype in HALVES else None
    return None if wide is None else float(wide)
