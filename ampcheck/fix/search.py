"""The smallest set that heals: delta debugging over candidates, each set tried by a re-run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")

#: Candidates tried alone, best evidence first, before the rest is searched by halving.
SINGLES = 8


@dataclass(frozen=True, slots=True)
class Found(Generic[Item]):
    """What a search came to."""

    items: tuple[Item, ...]  #: the set, in the order of the candidates
    heals: bool  #: a run with this set was healthy
    minimal: bool  #: taking any one item away was tried and does not heal


class Search(Generic[Item]):
    """Looks for a 1-minimal subset of the candidates that makes a run healthy.

    `heals` runs with a set and tells whether the run was healthy; each set is tried once. When the budget of
    seconds is used up the best set so far is the answer.
    """

    def __init__(
        self,
        heals: Callable[[tuple[Item, ...]], bool],
        budget: float = float("inf"),
        cost: Callable[[Item], float] = lambda _: 0.0,
    ) -> None:
        """Prepare to search; of items that can be taken away the one with the highest cost goes first."""
        self._heals = heals
        self._cost = cost
        self._until = time.monotonic() + budget
        self._tried: dict[tuple[Item, ...], bool] = {}

    def run(self, candidates: Sequence[Item]) -> Found[Item]:
        """Return the smallest set found; candidates come with the best evidence first."""
        for item in candidates[:SINGLES]:
            if self.tries((item,)):
                return self._found((item,), minimal=True)
        whole = tuple(candidates)
        if not self.tries(whole):
            return self._found(whole, heals=False, minimal=False)
        kept = self._halve(whole)
        return self._found(*self._thin(kept))

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() > self._until

    def tries(self, items: tuple[Item, ...]) -> bool:
        """Tell whether a set heals; not where that is unknown and the budget is used up."""
        if items not in self._tried:
            if self.over:
                return False
            self._tried[items] = self._heals(items)
        return self._tried[items]

    def _halve(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """Return a healing subset that no removal of one of its parts leaves healing (ddmin)."""
        parts = 2
        while len(items) > 1:
            size = -(-len(items) // parts)
            chunks = [items[i : i + size] for i in range(0, len(items), size)]
            rests = [tuple(item for item in items if item not in chunk) for chunk in chunks]
            smaller = next((chunk for chunk in chunks if self.tries(chunk)), None)
            if smaller is not None:
                items, parts = smaller, 2
                continue
            smaller = next((rest for rest in rests if rest and self.tries(rest)), None)
            if smaller is not None:
                items, parts = smaller, max(parts - 1, 2)
            elif parts >= len(items):
                break
            else:
                parts = min(2 * parts, len(items))
        return items

    def _thin(self, items: tuple[Item, ...]) -> tuple[tuple[Item, ...], bool]:
        """Return the set without items that are not needed, and whether every removal was tried."""
        for item in sorted(items, key=lambda item: (-self._cost(item), -items.index(item))):
            rest = tuple(other for other in items if other != item)
            if rest and self.tries(rest):
                items = rest
        alone = [tuple(other for other in items if other != item) for item in items]
        return items, all(not rest or self._tried.get(rest) is False for rest in alone)

    def _found(self, items: tuple[Item, ...], minimal: bool, *, heals: bool = True) -> Found[Item]:  # noqa: FBT001
        return Found(items, heals, minimal)
