"""One case of a sweep while it is run: its targets, its precisions, its arms."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ampcheck.bench.request import Request
from ampcheck.bench.result import Case
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.precisions import Precision, precision
from ampcheck.bench.running.ranks import shared
from ampcheck.bench.running.settings import compiled, put, scaled
from ampcheck.targets.spec import Target

Make: TypeAlias = Callable[[int | None, int], Target]  #: from a batch size and a seed


@dataclass(frozen=True, slots=True)
class OneCase:
    """What every part of a case is measured with."""

    build: Make
    request: Request
    begun: Case
    asked: int | None  #: batch size to build targets with
    first_seed: int
    tell: Callable[[str], None]

    def make(self, seed: int | None = None) -> Target:
        """Return a new target in the setting of the case."""
        return put(self.build(self.asked, self.first_seed if seed is None else seed), self.begun)

    def precision(self, name: str) -> Precision:
        """Return a precision by name, with the case's scaler."""
        return scaled(precision(name, self.request.plan), self.begun)

    def arm(self, chosen: Precision, *, graphed: bool = False) -> Arm:
        """Return an arm of its own in a precision."""
        target, chosen = shared(self.make(), self.begun, chosen)
        return Arm(compiled(target, self.begun), chosen, clip=self.request.clip, graphed=graphed)

    def say(self, what: str) -> None:
        """Say what is done now."""
        self.tell(f"{self.begun.key}: {what}")
