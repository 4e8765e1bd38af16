"""An audit of FP8 and FP4 recipes: each runs the step beside bf16; what harms is healed, and tried again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampcheck.fix.patch import SKETCH
from ampcheck.fix.recipe_course import RecipeCourse, same
from ampcheck.fix.recipe_lab import IN_BF16, RecipeLab
from ampcheck.fix.recipe_search import RecipeSearch
from ampcheck.fix.recipe_terms import lines_to_paste
from ampcheck.observe.fp8.emulate import Kept
from ampcheck.observe.fp8.fit import chosen_by_frameworks, misfits, missed_by_swapping
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.model.structure import named_modules
from ampcheck.observe.step import Step
from ampcheck.targets.nested import redrawn
from ampcheck.targets.spec import Target
from ampcheck.values.modules import within
from ampcheck.values.plan import Claim, Plan, Tried
from ampcheck.values.recipe_audit import HARM, RecipeAudit, RecipeOutcome, RecipePlan, RecipeResult
from ampcheck.values.recipes import HARDWARE, Recipe, recipe, recipes
from ampcheck.values.report import Report
from ampcheck.values.settings import Progress, Settings
from ampcheck.values.wording import percent, plural

#: Steps of bf16 training after which recipes are judged once more, where there are several batches.
TRAINED_STEPS = 50
#: Share of the budget that one short training may take.
_TRAINING = 0.25


@dataclass(slots=True)
class _Training:
    """A short training in bf16, the step after it, and where it began."""

    setup: RecipeCourse
    losses: list[float]
    later: RecipeLab
    before: Snapshot


def with_recipes(report: Report, target: Target, settings: Settings, progress: Progress) -> Report:
    """Return the report of a step in bf16 with what recipes do to that step."""
    with target.active():
        return _Audit(report, target, settings, progress).report()


class _Audit:
    """One audit of recipes."""

    def __init__(self, report: Report, target: Target, settings: Settings, progress: Progress) -> None:
        self._report, self._target, self._settings, self._progress = report, target, settings, progress
        self._asked = recipes(settings.precision)
        named = [path for path, _ in named_modules(target.model)]
        self._keep = frozenset(path for path in named if any(within(path, k) for k in settings.keep))
        progress("bf16")
        other = target.batch(1) if len(target.batches) > 1 else None
        self._lab = self._new_lab(target.batch(0), target.warmup, other)
        self._course = self._trained()

    def report(self) -> Report:
        """Run every recipe, choose, and heal what was chosen."""
        target, lab = self._target, self._lab
        results = [self._result(chosen) for chosen in self._asked]
        best = min(range(len(results)), key=lambda index: self._rank(self._asked[index], results[index]))
        if self._settings.verify and results[best].harmed:
            results[best] = self._healed(self._asked[best], results[best])
        audit = RecipeAudit(
            self._settings.precision,
            tuple(results),
            lab.loss,
            lab.undetermined,
            lab.judged,
            lab.layers,
            missed_by_swapping(target.model, lab.layers),
            lab.left,
            lab.noise,
            len(self._course.losses) if self._course is not None else 0,
        )
        plan, claims, advice = self._planned(self._asked[best], results[best])
        lines = lines_to_paste(recipe(plan.recipe), plan.bf16_modules, plan.bf16_gemms) if plan.recipe else ""
        notes = tuple(
            dict.fromkeys(text for one in self._asked for text in chosen_by_frameworks(one, target.model))
        )
        notes = (*self._report.notes, *notes)
        return replace(
            self._report,
            recipes=audit,
            plan=plan,
            claims=claims,
            advice=advice,
            patch=lines and SKETCH + lines,
            notes=notes,
        )

    def _new_lab(self, batch: Any, earlier: Sequence[Any] = (), other: Any = None) -> RecipeLab:
        step = Step(self._target.model, batch, self._target.loss)
        return RecipeLab(step, self._asked[0], earlier, other, self._keep)

    def _trained(self) -> _Training | None:
        """Train for a while in bf16, where there are batches to train on, and put the model back."""
        target, settings = self._target, self._settings
        if not target.trains or (len(target.batches) == 1 and not settings.verify_steps):
            return None
        setup = RecipeCourse(
            target.model, target.batches, target.loss, target.optimizer, target.after_step, self._keep
        )
        before = setup.snapshot()
        steps = settings.verify_steps or TRAINED_STEPS
        self._progress(f"training {plural(steps, 'step')} in bf16")
        try:
            losses = setup.losses(self._asked[0], IN_BF16, steps, _TRAINING * settings.budget)
            seen = [
                target.batch(index) for index in range(max(0, len(losses) - len(target.batches)), len(losses))
            ]
            other = target.batch(len(losses) + 1) if len(target.batches) > 1 else None
            later = self._new_lab(target.batch(len(losses)), seen, other)
        finally:
            before.restore()
        return _Training(setup, losses, later, before)

    def _result(self, chosen: Recipe) -> RecipeResult:
        """Run the step under a recipe, here and after the training."""
        self._progress(chosen.name)
        lab, setup = self._lab, self._course
        outcome, operands = lab.watched(chosen)
        trained = setup.later.outcome(chosen) if setup is not None else None
        ends = self._ends_as_bf16(chosen, Kept()) if chosen.four_bit else None
        return RecipeResult(
            outcome,
            trained=trained,
            ends_as_bf16=ends,
            operands=operands,
            misfits=misfits(chosen, lab.layers, lab.rows),
        )

    def _rank(self, chosen: Recipe, result: RecipeResult) -> tuple[bool, bool, bool, int, float]:
        """Return the order in which recipes are recommended: healthy, far from harm, for the oldest hardware."""
        error = result.harm.worst[1]
        near = error > HARM / 2
        return result.harmed, chosen.four_bit, near, HARDWARE.index(chosen.hardware), error if near else 0.0

    def _healed(self, chosen: Recipe, result: RecipeResult) -> RecipeResult:
        """Look for a plan where the harm was seen, and try it on the other step."""
        setup = self._course
        harmed_here = result.outcome.harmed or setup is None
        lab = self._lab if harmed_here or setup is None else setup.later
        outcome = result.outcome if harmed_here or result.trained is None else result.trained
        found = RecipeSearch(lab, chosen, self._settings.budget, self._progress).run(outcome)
        other = self._another(lab) if found.plan.healed else None
        fresh = None
        if other is not None:
            fresh = other.outcome(recipe(found.plan.recipe), kept_by(found.plan), exact=True)
        return replace(result, plan=found.plan, planned=found.planned, alone=found.alone, fresh=fresh)

    def _another(self, lab: RecipeLab) -> RecipeLab | None:
        """Return a step that a plan was not searched on: after training, of another batch, or of another draw."""
        setup, target = self._course, self._target
        if setup is not None:
            return setup.later if lab is self._lab else self._lab
        if len(target.batches) > 1:
            return self._new_lab(target.batch(1), target.warmup)
        batch = redrawn(target.batch(0))
        return None if batch is None else self._new_lab(batch, target.warmup)

    def _ends_as_bf16(self, chosen: Recipe, kept: Kept) -> bool | None:
        """Tell whether a short training ends where the one in bf16 did; None where there was none."""
        setup = self._course
        if setup is None or not setup.losses:
            return None
        self._progress(f"training {plural(len(setup.losses), 'step')} in {chosen.name}")
        setup.before.restore()
        try:
            losses = setup.setup.losses(chosen, kept, len(setup.losses), self._settings.budget)
        finally:
            setup.before.restore()
        return same(losses, setup.losses[: len(losses)])

    def _planned(
        self, chosen: Recipe, result: RecipeResult
    ) -> tuple[Plan, tuple[Claim, ...], tuple[str, ...]]:
        """Return the plan, what re-runs said of it, and what else a person should know."""
        found, planned = result.plan, result.planned
        if not result.harmed:
            claim = Claim(
                f"{chosen.name} gives the gradients of bf16", Tried.CONFIRMED, "bf16", result.harm.words
            )
            trained = self._training_claim(chosen, Kept())
            plan = Plan("bf16", recipe=chosen.name, bf16_modules=self._lab.kept)
            return plan, (claim, *trained), self._choice(chosen)
        if found is None or planned is None or not found.healed:
            failed = f"no exception tried heals {chosen.name}: train in bf16"
            return Plan("bf16"), (), () if found is None else (failed,)
        modules = (*self._lab.kept, *found.bf16_modules)
        plan = Plan("bf16", recipe=found.recipe, bf16_modules=modules, bf16_gemms=found.gemms)
        claims = [Claim(plan_words(found), Tried.CONFIRMED, result.outcome.words, planned.words)]
        if result.fresh is not None:
            drawn = self._course is None and len(self._target.batches) == 1
            step = "for another draw of the batch's samples" if drawn else "in another step"
            claims.append(_claim(f"the same holds {step}", result.fresh, result))
        claims += self._training_claim(recipe(found.recipe), kept_by(found))
        shown = [] if result.fresh is not None else ["no other batch was there to try the plan on"]
        shown += [f"{percent(found.cost)} of the linear layers' operations stay in bf16 with this plan"]
        if found.diffuse:
            shown.append("the harm is diffuse: no small set of layers causes it")
        if found.bf16_modules and not found.minimal:
            shown.append("the time budget ended the search: a smaller set may exist")
        return plan, tuple(claims), tuple(shown)

    def _training_claim(self, chosen: Recipe, kept: Kept) -> tuple[Claim, ...]:
        """Return what a short training says of a plan."""
        if not self._settings.verify:
            return ()
        ends = self._ends_as_bf16(chosen, kept)
        if ends is None or self._course is None:
            return ()
        steps = plural(len(self._course.losses), "step")
        tried = Tried.CONFIRMED if ends else Tried.REFUTED
        return (Claim(f"trains as bf16 over {steps}", tried, "", ""),)

    def _choice(self, chosen: Recipe) -> tuple[str, ...]:
        if len(self._asked) == 1:
            return ()
        return (f"recommended: {chosen.name}, healthy without any exception, from {chosen.hardware} on",)


def kept_by(plan: RecipePlan) -> Kept:
    """Return what a plan keeps in bf16."""
    if plan.gemms and plan.bf16_modules:
        return Kept(gemms_of=frozenset((name, gemm) for name in plan.bf16_modules for gemm in plan.gemms))
    return Kept(frozenset(plan.bf16_modules), frozenset(plan.gemms))


def plan_words(plan: RecipePlan) -> str:
    """Return what a plan asks for."""
    gemms = f"the {' and '.join(plan.gemms)} of " if plan.gemms else ""
    if plan.bf16_modules:
        return f"keep {gemms}{', '.join(plan.bf16_modules)} in bf16"
    return f"keep {gemms}every layer in bf16" if gemms else f"train with {plan.recipe} instead"


def _claim(words: str, after: RecipeOutcome, result: RecipeResult) -> Claim:
    before = result.trained if result.trained is not None else result.outcome
    return Claim(words, Tried.REFUTED if after.harmed else Tried.CONFIRMED, before.words, after.words)
