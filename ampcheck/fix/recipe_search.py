"""The smallest exception that lets a recipe train: another recipe, GEMMs, or layers that stay in bf16."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ampcheck.fix.recipe_lab import RecipeLab
from ampcheck.observe.fp8.emulate import Kept
from ampcheck.values.recipe_audit import RecipeOutcome, RecipePlan
from ampcheck.values.recipes import GEMMS, HARDWARE, RECIPES, Recipe
from ampcheck.values.settings import Progress

#: Layers of the best rank among which small sets are tried out completely, and how large those get.
_TOP, _LARGEST = 7, 3
#: Share of the budget for running layers alone.
_RANKING = 0.4
#: Sets of GEMMs that a library can leave in bf16, the cheapest first.
_GEMM_SETS = (("wgrad",), ("dgrad",), ("dgrad", "wgrad"))


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search came to."""

    plan: RecipePlan
    planned: RecipeOutcome
    alone: Mapping[str, float]


class RecipeSearch:
    """Looks for the cheapest change under which a harmed step comes out as in bf16."""

    def __init__(self, lab: RecipeLab, recipe: Recipe, budget: float, progress: Progress) -> None:
        self._lab, self._recipe, self._progress = lab, recipe, progress
        self._budget = budget
        self._until = time.monotonic() + budget
        self._known: dict[Kept, RecipeOutcome] = {}
        self._begun = lab.trials

    def run(self, outcome: RecipeOutcome) -> Searched:
        """Return the cheapest plan that heals, layers unless another recipe or GEMM costs less."""
        self._known[Kept()] = outcome
        changed = self._changed()
        alone = self._alone()
        ranked = sorted(self._lab.layers, key=lambda name: -alone.get(name, 0.0))
        layers = self._layers(ranked)
        plans = [row for row in (changed, layers) if row is not None and row[0].healed]
        plan, planned = min(plans, key=lambda row: row[0].cost, default=self._whole(outcome))
        return Searched(replace(plan, trials=self._lab.trials - self._begun), planned, alone)

    def _try(self, kept: Kept) -> RecipeOutcome:
        if kept not in self._known:
            self._known[kept] = self._lab.outcome(self._recipe, kept)
        return self._known[kept]

    def _heals(self, modules: Sequence[str]) -> bool:
        return not self._over and self._try(Kept(frozenset(modules))).healed

    @property
    def _over(self) -> bool:
        return time.monotonic() > self._until

    def _changed(self) -> tuple[RecipePlan, RecipeOutcome] | None:
        """Return the cheapest recipe of the same library, for hardware no newer, that comes out healthy."""
        found = []
        for other in RECIPES.values():
            if not _replaces(other, self._recipe) or self._over:
                continue
            self._progress(f"trying {other.name}")
            outcome = self._lab.outcome(other)
            if outcome.healed:
                found.append((RecipePlan(other.name, cost=len(other.in_bf16) / 3, healed=True), outcome))
        return min(found, key=lambda row: row[0].cost, default=None)

    def _alone(self) -> dict[str, float]:
        """Return the worst error with each layer alone under the recipe, as far as the budget reaches."""
        until = time.monotonic() + _RANKING * self._budget
        found: dict[str, float] = {}
        for name in self._lab.layers:
            if time.monotonic() > until:
                break
            self._progress(f"{self._recipe.name} in {name} alone")
            found[name] = self._try(Kept(only=frozenset({name}))).worst[1]
        return found

    def _layers(self, ranked: Sequence[str]) -> tuple[RecipePlan, RecipeOutcome] | None:
        """Return the smallest set of layers found that heals, and the GEMMs of theirs that it takes."""
        found, minimal = self._smallest(ranked)
        if not found:
            return None
        outcome = self._settled(found)
        if not outcome.healed:  # delayed scales came out another way with these layers in bf16
            return None
        plan = RecipePlan(
            self._recipe.name,
            tuple(found),
            self._gemms(found),
            self._lab.share(found),
            healed=True,
            minimal=minimal,
            diffuse=len(found) > max(_LARGEST, len(ranked) // 2),
        )
        return replace(plan, cost=plan.cost * len(plan.gemms or GEMMS) / len(GEMMS)), outcome

    def _settled(self, modules: Sequence[str]) -> RecipeOutcome:
        kept = Kept(frozenset(modules))
        return self._lab.outcome(self._recipe, kept, exact=True) if self._recipe.delayed else self._try(kept)

    def _smallest(self, ranked: Sequence[str]) -> tuple[list[str], bool]:
        """Return a set that heals, and whether every smaller one that could be tried does not."""
        for name in ranked[:_TOP]:
            if self._heals([name]):
                return [name], True
        first = self._prefix(ranked)
        if first is None:
            return [], False
        thin = self._thinned(list(ranked[:first]))
        pool = list(dict.fromkeys([*thin, *ranked[:_TOP]]))[:_TOP]
        for size in range(2, min(len(thin), _LARGEST + 1)):
            for some in itertools.combinations(pool, size):
                if self._heals(some):
                    return list(some), not self._over
        return thin, not self._over

    def _prefix(self, ranked: Sequence[str]) -> int | None:
        """Return how many layers of the best rank heal together, by bisection."""
        low, high = 1, len(ranked)
        if not self._heals(ranked):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._heals(ranked[:middle]) else (middle, high)
        return high

    def _thinned(self, modules: list[str]) -> list[str]:
        """Return the set without those that are not needed, the least of rank first."""
        for name in reversed(modules):
            rest = [other for other in modules if other != name]
            if rest and self._heals(rest):
                modules = rest
        return modules

    def _gemms(self, modules: Sequence[str]) -> tuple[str, ...]:
        """Return the GEMMs of these modules that alone have to stay in bf16; nothing where it takes all."""
        for gemms in _GEMM_SETS:
            if self._over:
                break
            kept = Kept(gemms_of=frozenset((name, gemm) for name in modules for gemm in gemms))
            if self._try(kept).healed:
                return gemms
        return ()

    def _whole(self, outcome: RecipeOutcome) -> tuple[RecipePlan, RecipeOutcome]:
        """Return the GEMMs that heal when they stay in bf16 in every layer; or that nothing tried heals."""
        for gemms in _GEMM_SETS:
            kept = Kept(gemms=frozenset(gemms))
            if not self._over and (found := self._try(kept)).healed:
                return RecipePlan(
                    self._recipe.name, (), gemms, len(gemms) / 3, healed=True, diffuse=True
                ), found
        return RecipePlan(self._recipe.name, diffuse=not self._over), outcome


def _replaces(other: Recipe, recipe: Recipe) -> bool:
    """Tell whether a user of one recipe can turn to another: same library, no newer hardware, same width."""
    newer = HARDWARE.index(other.hardware) > HARDWARE.index(recipe.hardware)
    return other.library == recipe.library and other.name != recipe.name and not newer and not other.four_bit
