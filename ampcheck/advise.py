"""From evidence to a plan: what to keep in FP32, which loss scale, which precision; each tried by a re-run."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import log2

import torch

from ampcheck.evidence import Suspect, suspects
from ampcheck.outcome import Outcome
from ampcheck.plan import Plan, ScalerPlan, Tried, Verdict
from ampcheck.report import Report
from ampcheck.scaling.advice import ScaleAdvice, advise_scale
from ampcheck.scaling.gradients import gradient_tensors, maxima
from ampcheck.search import Found, Search
from ampcheck.trace import Phase, Site
from ampcheck.verify import Lab
from ampcheck.wording import plural, size

#: The scales at which sets are tried in fp16: far from both ends first, so that only the set decides; smaller
#: ones where gradients still overflow, as a scaler would.
_SEARCH_LOG2_SCALES = (8, 4, 0)
#: Places up to which each one is worth a run of its own.
_FEW_PLACES = 4
#: Where GradScaler starts.
_DEFAULT_LOG2_SCALE = 16
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_OTHER = {"fp16": "bf16", "bf16": "fp16"}

Progress = Callable[[str], None]


class Advisor:
    """Tries changes to one audited step, in a lab, and puts what heals into a plan."""

    def __init__(self, report: Report, lab: Lab, progress: Progress) -> None:
        """Run the step as it was audited, without a scale, and in the other precision."""
        self.report = report
        self._lab = lab
        self._progress = progress
        self._times = (0.0, 0.0)
        outcomes = {"settled": self._try(report.log2_scale)}
        if report.precision == "fp16":
            outcomes["unscaled"] = self._try(0)
        other = _OTHER[report.precision]
        progress(f"trying {other}")
        outcomes[other] = self._settled(other)
        self.report = replace(report, outcomes=outcomes)

    def advise(self, budget: float) -> Report:
        """Return the report with a plan and a verdict on each of its claims."""
        settled = self.report.outcomes["settled"]
        found = self._search(budget) if settled.harmed else None
        if found is not None and not found.heals:
            return self._without_remedy(found)
        items = found.items if found is not None else ()
        scale = self._scale(items) if self.report.precision == "fp16" else None
        after = settled if found is None and scale is None else self._try(_log2(scale), items)
        plan = Plan(
            self.report.precision,
            tuple(item.module for item in items if item.module),
            tuple(item.line for item in items if item.line),
            scale,
        )
        if items:
            self._times = self._timed(items, _log2(scale))
            outcomes = {**self.report.outcomes, "planned": after}
            self.report = replace(self.report, outcomes=outcomes)
        verdicts = [*self._kept(items, settled, after), *self._scaled(scale, after)]
        return replace(self.report, plan=plan, verdicts=tuple(verdicts), advice=self._sentences(plan, found))

    def _try(self, log2_scale: int, items: Iterable[Suspect] = (), precision: str = "") -> Outcome:
        chosen = list(items)
        modules = [item.module for item in chosen if item.module]
        places = (item.line.rpartition(":") for item in chosen if item.line)
        lines = [(file, int(line)) for file, _, line in places]
        return self._lab.trial(_DTYPES[precision or self.report.precision], log2_scale, modules, lines)

    def _best(self, items: Iterable[Suspect]) -> Outcome:
        """Return how the step comes out with these places in FP32, at a scale that lets it."""
        chosen = tuple(items)
        for scale in _SEARCH_LOG2_SCALES if self.report.precision == "fp16" else (0,):
            outcome = self._try(scale, chosen)
            if not outcome.grads_nonfinite or outcome.loss_nonfinite:
                break
        return outcome

    def _settled(self, precision: str) -> Outcome:
        """Return how the step comes out where a scaler would settle in another precision."""
        if precision == "bf16":
            return self._try(0, precision=precision)
        for scale in range(_DEFAULT_LOG2_SCALE, 0, -2):
            outcome = self._try(scale, precision=precision)
            if outcome.finite or outcome.loss_nonfinite or outcome.raised:
                return outcome
        return self._try(0, precision=precision)

    def _search(self, budget: float) -> Found[Suspect]:
        def heals(items: tuple[Suspect, ...]) -> bool:
            self._progress(f"trying {plural(len(items), 'place')} in FP32, {items[0].name} first")
            return not self._best(items).harmed

        return _gathered(Search(heals, budget).run(suspects(self.report)), heals)

    def _scale(self, items: tuple[Suspect, ...]) -> ScalerPlan:
        """Return the scaler that suits what stays in low precision, smaller where a run still overflows."""
        report = self.report
        kept = {
            place: stats
            for place, stats in gradient_tensors(report).items()
            if not any(_holds(item, place) for item in items)
        }
        refused = () if items else report.refused_scales
        advice: ScaleAdvice[Site] = advise_scale(
            kept, () if items else maxima(report), report.format, refused
        )
        scale = advice.log2_scale
        while scale > 0 and self._try(scale, items).grads_nonfinite:
            scale -= 2
        default = f"torch's own start at 2^{_DEFAULT_LOG2_SCALE}: {advice.default.message}"
        self.report = replace(report, advice=(advice.message, default))
        settings = advice.settings
        return ScalerPlan(
            2.0 ** max(scale, 0), settings.growth_factor, settings.backoff_factor, settings.growth_interval
        )

    def _timed(self, items: tuple[Suspect, ...], log2_scale: int) -> tuple[float, float]:
        """Return the seconds of a step without and with these places in FP32."""
        self._try(log2_scale)
        before = self._lab.seconds
        self._try(log2_scale, items)
        return before, self._lab.seconds

    def _kept(self, items: tuple[Suspect, ...], before: Outcome, after: Outcome) -> list[Verdict]:
        if not items:
            return []
        names = ", ".join(item.name for item in items)
        tried = Tried.REFUTED if after.harmed else Tried.CONFIRMED
        whole = Verdict(f"keep {names} in FP32", tried, before.words, after.words)
        if len(items) == 1 or len(items) > _FEW_PLACES:
            return [whole]
        return [whole, *(self._needed(item, items, after) for item in items)]

    def _needed(self, item: Suspect, items: tuple[Suspect, ...], whole: Outcome) -> Verdict:
        """Return the verdict on one member of a set: without it the step is not healed."""
        rest = [other for other in items if other != item]
        without = self._best(rest)
        tried = Tried.CONFIRMED if without.harmed else Tried.REFUTED
        return Verdict(f"{item.name} is needed", tried, without.words, whole.words)

    def _scaled(self, scale: ScalerPlan | None, after: Outcome) -> list[Verdict]:
        unscaled = self.report.outcomes.get("unscaled")
        if scale is None or unscaled is None:
            return []
        tried = Tried.CONFIRMED if after.finite and not after.harmed else Tried.REFUTED
        return [Verdict(f"start the loss scale at 2^{_log2(scale)}", tried, unscaled.words, after.words)]

    def _without_remedy(self, found: Found[Suspect]) -> Report:
        settled = self.report.outcomes["settled"]
        other = self.report.outcomes[_OTHER[self.report.precision]]
        precision = "fp32" if other.harmed else _OTHER[self.report.precision]
        scaler = ScalerPlan(2.0**other.log2_scale) if precision == "fp16" else None
        tried = Tried.CONFIRMED if precision != "fp32" else Tried.NOT_TRIED
        places = plural(len(found.items), "place")
        claim = f"train in {precision}: no set tried of {places} in FP32 heals {self.report.precision}"
        verdict = Verdict(
            claim, tried, settled.words, other.words if precision != "fp32" else "the reference itself"
        )
        plan = Plan(precision, (), (), scaler)
        return replace(self.report, plan=plan, verdicts=(verdict,), advice=self._sentences(plan, found))

    def _sentences(self, plan: Plan, found: Found[Suspect] | None) -> tuple[str, ...]:
        """Return what a person should know beside the plan's numbers."""
        told = list(self.report.advice)
        told.append(_recommended(self.report, plan))
        if plan.fp32_modules:
            more = size(_extra_bytes(self.report, plan))
            told.append(f"FP32 there keeps {more} more of activations (estimated from the trace)")
        if self._times[0]:
            factor = self._times[1] / self._times[0]
            told.append(
                f"a step takes {factor:.2f} times as long with the plan (measured here, one run each)"
            )
        if found is not None and found.heals and not found.minimal:
            told.append("the budget ended the search: a smaller set may exist")
        return tuple(told)


def _log2(scale: ScalerPlan | None) -> int:
    return 0 if scale is None else round(log2(scale.init_scale))


def _holds(item: Suspect, place: Site) -> bool:
    if item.line:
        return place.location == item.line
    return place.module == item.module or place.module.startswith(f"{item.module}.")


def _extra_bytes(report: Report, plan: Plan) -> int:
    """Return what the results of the plan's modules take in FP32 beyond what they take in half precision."""
    places = [Suspect(module=name) for name in plan.fp32_modules]
    return sum(
        2 * stats.numel
        for site, stats in report.low.sites.items()
        if site.phase is Phase.FORWARD and site.op and site.dtype == report.dtype
        if any(_holds(item, site) for item in places)
    )


def _recommended(report: Report, plan: Plan) -> str:
    """Return which precision to train in and why, from the runs in both."""
    other = _OTHER[report.precision]
    outcome = report.outcomes[other]
    state = "comes out wrong too" if outcome.harmed else "comes out healthy without any change"
    if plan.precision != report.precision:
        return (
            f"recommended: {plan.precision}, since {report.precision} cannot be healed here; {other} {state}"
        )
    if not plan.fp32_modules and not plan.fp32_lines:
        scaler = " with the scaler above" if plan.scaler is not None else ""
        return f"recommended: {report.precision}{scaler}; {other} {state} ({outcome.words})"
    if not outcome.harmed:
        instead = f"or {report.precision} with the plan above"
        return f"recommended: {other}, where nothing has to stay in FP32 ({outcome.words}); {instead}"
    return f"recommended: {report.precision} with the plan above; {other} {state} ({outcome.words})"


def _gathered(found: Found[Suspect], heals: Callable[[tuple[Suspect, ...]], bool]) -> Found[Suspect]:
    """Return the set with one module in the place of several that it holds, wherever that heals too."""
    items, trials = found.items, found.trials
    # A long set is no culprit, and the module that holds all of it would only look like one.
    for parent in _parents(items) if found.heals and len(items) <= _FEW_PLACES else ():
        merged = (Suspect(module=parent), *(item for item in items if not _inside(item, parent)))
        if len(merged) < len(items):
            trials += 1
            items = merged if heals(merged) else items
    return replace(found, items=items, trials=trials)


def _parents(items: tuple[Suspect, ...]) -> list[str]:
    """Return the modules but the root that hold more than one of these, those that hold most first."""
    above = [name for item in items for name in _ancestors(item.module)]
    shared = [name for name in dict.fromkeys(above) if above.count(name) > 1]
    return sorted(shared, key=lambda name: -above.count(name))


def _ancestors(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _inside(item: Suspect, parent: str) -> bool:
    return item.module == parent or item.module.startswith(f"{parent}.")
