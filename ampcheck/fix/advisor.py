"""From evidence to a plan: what to keep in FP32, which loss scale, which precision; each tried by a re-run."""

from dataclasses import replace
from math import log2

from ampcheck.diagnose.scaling.advice import ScaleAdvice, advise_scale
from ampcheck.diagnose.scaling.gradients import gradient_tensors, maxima
from ampcheck.diagnose.suspects import Suspect, suspects
from ampcheck.fix.last_culprit import all_but, last_culprit
from ampcheck.fix.scale_or_place import ScaleOrPlace, place_for_a_scale
from ampcheck.fix.search import SINGLES, Found, Search
from ampcheck.fix.smallest import FEW_PLACES, cost, gathered, narrowed, smaller_part
from ampcheck.fix.trials import Times, Trials
from ampcheck.fix.verify import Lab
from ampcheck.values.outcome import HARM_UNDERFLOW, TOLD_ERROR, Outcome, magnified, rounding_baseline
from ampcheck.values.plan import DEFAULT_LOG2_SCALE, Claim, Plan, ScalerPlan, Tried
from ampcheck.values.report import Report
from ampcheck.values.settings import Progress
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import plural, size

_OTHER = {"fp16": "bf16", "bf16": "fp16"}

#: Said in the place of a scaler where torch would refuse one.
_NO_SCALER = (
    "no GradScaler is planned: torch's raises on the float16 gradients of weights in half precision; keep the weights "
    "in FP32 (model.float()) and let autocast cast them"
)


class Advisor:
    """Tries changes to one audited step, in a lab, and puts what heals into a plan."""

    def __init__(self, report: Report, lab: Lab, progress: Progress) -> None:
        """Run the step as it was audited, without a scale, and in the other precision."""
        self.report = report
        self._trials = Trials(lab, report.precision)
        self._progress = progress
        self._times: Times | None = None
        outcomes = {"settled": self._trials.attempt(report.log2_scale)}
        if report.precision == "fp16":
            outcomes["unscaled"] = self._trials.attempt(0)
        if outcomes["settled"].finite and outcomes["settled"].error > TOLD_ERROR:
            outcomes["rounded"] = self._trials.rounded()
        other = _OTHER[report.precision]
        progress(f"trying {other}")
        outcomes[other] = self._trials.settled(other)
        if outcomes[other].harmed and outcomes[other].finite:
            outcomes["rounded_other"] = self._trials.rounded(other)
        self.report = replace(report, outcomes=outcomes)

    def advise(self, budget: float) -> Report:
        """Return the report with a plan and a verdict on each of its claims."""
        settled = self.report.outcomes["settled"]
        scale = self._rescaled()
        searching = settled.harmed and scale is None
        found = self._search(budget) if searching else None
        if found is not None and not found.heals and not magnified(self.report.outcomes):
            return self._without_remedy(found)
        items = found.items if found is not None and found.heals else ()
        remedy = None if searching else place_for_a_scale(self.report, self._trials)
        return self._planned(items, scale, remedy, found)

    def _planned(
        self,
        items: tuple[Suspect, ...],
        scale: ScalerPlan | None,
        remedy: ScaleOrPlace | None,
        found: Found[Suspect] | None,
    ) -> Report:
        """Return the report with the plan that these make, and what its own run says."""
        report = self.report
        settled = report.outcomes["settled"]
        if scale is None and report.precision == "fp16":
            scale = self._scale(items)
        if scale is not None and _half_weights(report):
            scale = None
            self.report = replace(self.report, advice=(_NO_SCALER,))
        kept = items if remedy is None else (remedy.place,)
        after = settled if scale is None and not kept else self._trials.attempt(_log2(scale), kept)
        plan = Plan(
            report.precision,
            tuple(item.module for item in kept if item.module),
            tuple(item.line for item in kept if item.line),
            scale,
        )
        if kept:
            self._times = self._trials.timed(kept, _log2(scale))
            self._remember("planned", after)
        claims = [*self._kept(items, settled, after), *([remedy.verdict] if remedy else [])]
        claims += self._scaled(scale, kept, after)
        sentences = self._sentences(plan, found, remedy)
        return replace(self.report, plan=plan, claims=tuple(claims), advice=sentences)

    def _remember(self, name: str, outcome: Outcome) -> None:
        self.report = replace(self.report, outcomes={**self.report.outcomes, name: outcome})

    def _rescaled(self) -> ScalerPlan | None:
        """Return the scaler that alone heals a step whose gradients underflow or overflow, at the scale in use."""
        settled = self.report.outcomes["settled"]
        ill = settled.underflow > HARM_UNDERFLOW or settled.grads_nonfinite
        if self.report.precision != "fp16" or settled.raised or settled.loss_nonfinite or not ill:
            return None
        scale = self._scale(())
        outcome = self._trials.attempt(_log2(scale))
        if outcome.harmed:
            return None
        self._remember("rescaled", outcome)
        return scale

    def _search(self, budget: float) -> Found[Suspect]:
        settled = self.report.outcomes["settled"]
        only_magnified = magnified(self.report.outcomes)

        def heals(items: tuple[Suspect, ...]) -> bool:
            self._progress(f"trying {plural(len(items), 'place')} in FP32, {items[0].name} first")
            outcome = self._trials.best(items)
            return outcome.clearly_heals(settled) if only_magnified else not outcome.harmed

        # A model that magnifies any rounding has a culprit among the first suspects or none: the long search
        # would end with most of its modules.
        candidates = suspects(self.report)[: SINGLES if only_magnified else None]
        search = Search(heals, budget, lambda item: cost(self.report, item))
        found = narrowed(search.run(candidates), candidates, search, lambda item: cost(self.report, item))
        found = gathered(self.report, found, heals)
        if settled.finite and found.heals:
            found = self._blamed(found, search)
            clear = not only_magnified and self._trials.best(found.items).clearly_heals(settled)
            if not clear and not self._trials.heals_again(found.items, clearly=only_magnified):
                found = replace(found, heals=False)
        worth = len(found.items) <= FEW_PLACES or (
            not only_magnified and smaller_part(self.report, found.items)
        )
        return found if worth else replace(found, heals=False)

    def _blamed(self, found: Found[Suspect], search: Search[Suspect]) -> Found[Suspect]:
        """Return what was found, or the place behind it that is the cause; note where the bits are lost."""
        if not found.heals or len(found.items) != 1:
            return found
        proved = smaller_part(self.report, found.items)
        culprit = last_culprit(self.report, found.items[0], search.tries, proved=proved)
        self.report = replace(self.report, placed=culprit.site)
        if not proved and culprit.site is None and not magnified(self.report.outcomes):
            rest = all_but(self.report, culprit.place)
            if rest and not search.over:
                self._remember("rest", self._trials.best(rest))
        return replace(found, items=(culprit.place,))

    def _scale(self, items: tuple[Suspect, ...]) -> ScalerPlan:
        """Return the scaler that suits what stays in low precision, smaller where a run still overflows.

        With places in FP32 other gradients are held in low precision than were: the step is recorded with them.
        """
        report = self.report
        planned = self._trials.recorded(items) if items else None
        if planned is not None:
            report = replace(report, low=planned, log2_scale=planned.steps[0].log2_scale)
        kept = {
            place: stats
            for place, stats in gradient_tensors(report).items()
            if planned is not None or not any(item.holds(place) for item in items)
        }
        refused = () if items else report.refused_scales
        seen = () if items and planned is None else maxima(report)
        advice: ScaleAdvice[Site] = advise_scale(kept, seen, report.format, refused)
        scale = advice.log2_scale
        while scale > 0 and self._trials.attempt(scale, items).grads_nonfinite:
            scale -= 2
        shown = self._expected(advice, scale, recorded=bool(kept))
        # What the record predicts for the model as it is stands in another part of the report.
        self.report = replace(
            self.report, advice=tuple(f"with the plan: {text}" for text in shown) if items and kept else shown
        )
        settings = advice.settings
        return ScalerPlan(
            2.0**scale, settings.growth_factor, settings.backoff_factor, settings.growth_interval
        )

    def _expected(self, advice: ScaleAdvice[Site], scale: int, *, recorded: bool) -> tuple[str, ...]:
        """Return what to expect of a scale: what the record says of it, or only what trying it has shown."""
        made = f"GradScaler(init_scale=2.0**{scale})"
        if not recorded:
            return (f"{made}: tried, not predicted, since no gradient was recorded",)
        if scale != advice.log2_scale:
            return (
                f"{made}: the largest tried at which nothing overflowed in a re-run; {advice.window.message}",
            )
        return (advice.message, f"torch's own start at 2^{DEFAULT_LOG2_SCALE}: {advice.default.message}")

    def _kept(self, items: tuple[Suspect, ...], before: Outcome, after: Outcome) -> list[Claim]:
        if not items:
            return []
        names = ", ".join(item.name for item in items)
        tried = Tried.CONFIRMED if after.better_than(before) else Tried.REFUTED
        whole = Claim(f"keep {names} in FP32", tried, before.words, after.words)
        if len(items) == 1 or len(items) > FEW_PLACES:
            return [whole]
        return [whole, *(self._needed(item, items, after) for item in items)]

    def _needed(self, item: Suspect, items: tuple[Suspect, ...], whole: Outcome) -> Claim:
        """Return the verdict on one member of a set: without it the step is not healed."""
        rest = [other for other in items if other != item]
        without = self._trials.best(rest)
        tried = Tried.CONFIRMED if without.harmed else Tried.REFUTED
        return Claim(f"{item.name} is needed", tried, without.words, whole.words)

    def _scaled(self, scale: ScalerPlan | None, kept: tuple[Suspect, ...], after: Outcome) -> list[Claim]:
        """Return the verdict on a scale: the same step, with the same places in FP32, without it and with it."""
        if scale is None or "unscaled" not in self.report.outcomes or not _log2(scale):
            return []  # a scale of 1 is none
        unscaled = self._trials.attempt(0, kept) if kept else self.report.outcomes["unscaled"]
        well = not after.harmed or after.magnifies(self.report.outcomes.get("rounded"))
        if well and not after.better_than(unscaled):
            return []  # the scale changes nothing here
        tried = Tried.CONFIRMED if well else Tried.REFUTED
        claim = f"start the loss scale at 2^{_log2(scale)}"
        without, with_it = unscaled.compared_with(after)
        return [Claim(claim, tried, f"without a loss scale: {without}", with_it)]

    def _without_remedy(self, found: Found[Suspect]) -> Report:
        settled = self.report.outcomes["settled"]
        other = self.report.outcomes[_OTHER[self.report.precision]]
        precision = "fp32" if other.harmed else _OTHER[self.report.precision]
        scales = precision == "fp16" and not _half_weights(self.report)
        scaler = ScalerPlan(2.0**other.log2_scale) if scales else None
        tried = Tried.CONFIRMED if precision != "fp32" else Tried.NOT_TRIED
        places = plural(len(found.items), "place")
        claim = f"train in {precision}: no tried set of {places} in FP32 heals {self.report.precision}"
        verdict = Claim(claim, tried, settled.words, other.words if precision != "fp32" else "the reference")
        plan = Plan(precision, (), (), scaler)
        return replace(self.report, plan=plan, claims=(verdict,), advice=self._sentences(plan, found))

    def _sentences(
        self, plan: Plan, found: Found[Suspect] | None, remedy: ScaleOrPlace | None = None
    ) -> tuple[str, ...]:
        """Return what a person should know beside the plan's numbers."""
        sentences = list(self.report.advice)
        sentences += [remedy.words] if remedy is not None else []
        sentences.append(_recommended(self.report, plan))
        if more := _extra_bytes(self.report, plan):
            sentences.append(
                f"keeping this in FP32 stores {size(more)} more of activations (estimated from the trace)"
            )
        if self._times is not None:
            sentences.append(self._times.words)
        if found is not None and found.heals and not found.minimal:
            sentences.append("the time budget ended the search: a smaller set may exist")
        return tuple(sentences)


def _half_weights(report: Report) -> bool:
    """Tell whether weights that are trained are held in fp16, whose gradients GradScaler does not unscale."""
    return any(s.slot.startswith("param_grad[") and s.dtype == "float16" for s in report.low.sites)


def _log2(scale: ScalerPlan | None) -> int:
    return 0 if scale is None else round(log2(scale.init_scale))


def _extra_bytes(report: Report, plan: Plan) -> int:
    """Return what the results of the plan's modules take in FP32 beyond what they take in half precision."""
    places = [Suspect(module=name) for name in plan.fp32_modules]
    return sum(
        2 * stats.numel
        for site, stats in report.low.sites.items()
        if site.phase is Phase.FORWARD and site.op and site.dtype == report.dtype
        if any(item.holds(site) for item in places)
    )


def _recommended(report: Report, plan: Plan) -> str:
    """Return which precision to train in and why, from the runs in both."""
    other = _OTHER[report.precision]
    outcome = report.outcomes[other]
    wrong = "comes out wrong too" if report.outcomes["settled"].harmed else "comes out wrong"
    state = wrong if outcome.harmed else f"comes out healthy{outcome.at_scale or ' without a loss scale'}"
    rounded = rounding_baseline(report.outcomes, other=True)
    if outcome.magnifies(rounded):
        state = "is inconclusive on these weights, which magnify any rounding"
    if not plan.fp32_modules and not plan.fp32_lines and magnified(report.outcomes):
        trained = "audit trained ones (--weights FILE), or " if report.random_weights else ""
        return (
            f"whether {plan.precision} harms training cannot be seen at these weights; {trained}train beside "
            "FP32: --verify-steps N"
        )
    if plan.precision != report.precision:
        return (
            f"recommended: {plan.precision}, since {report.precision} cannot be healed here; {other} {state}"
        )
    if not plan.fp32_modules and not plan.fp32_lines:
        scaler = " with this GradScaler" if plan.scaler is not None else ""
        return f"recommended: {report.precision}{scaler}; {other} {state} ({outcome.words})"
    if not outcome.harmed:
        needs = f"{report.precision} needs the plan above"
        return f"either is healthy: {other} needs no change ({outcome.words}), {needs}"
    return f"recommended: {report.precision} with the plan above; {other} {state} ({outcome.words})"
