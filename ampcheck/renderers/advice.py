"""The terminal's plan: what to train with, and what re-running said of every claim in it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ampcheck.renderers.layout import Parts, hanging, indented, text, title
from ampcheck.values.outcome import rounding_baseline
from ampcheck.values.plan import Plan, ScalerPlan, Tried
from ampcheck.values.report import Report
from ampcheck.values.wording import clean, percent, plural, scale_words

if TYPE_CHECKING:
    from rich.console import RenderableType

_STATES = {"healthy": "green", "harmed": "red", "inconclusive": "yellow"}
_OUTPUTS = {"cast-back": "results cast back", "promote": "results left in FP32"}
_MARKS = {Tried.CONFIRMED: ("+", "green"), Tried.REFUTED: ("x", "red"), Tried.NOT_TRIED: ("?", "yellow")}


def plan_lines(report: Report) -> Parts:
    """Yield the plan, then each claim with the step before and after it."""
    if report.plan is None and not report.claims:
        return
    yield from title("Plan", how_tried(report))
    if report.plan is not None:
        yield from _steps(report.plan)
    yield from _precisions(report)
    for verdict in report.claims:
        mark, style = _MARKS[verdict.tried]
        words = text(clean(verdict.claim), (f"  {verdict.tried}", style))
        if verdict.before or verdict.after:
            words.append(f"\n{clean(verdict.before) or '?'} → {clean(verdict.after) or '?'}", "dim")
        yield hanging(text((mark, style)), words, 2)
    yield from _patch(report.patch, whole=report.mode == "infer")
    for sentence in report.advice:
        yield hanging(text(("·", "dim")), text(clean(sentence)), 2)


def how_tried(report: Report) -> str:
    """Return how many of the plan's claims a re-run has confirmed."""
    confirmed = sum(verdict.tried is Tried.CONFIRMED for verdict in report.claims)
    claims = plural(len(report.claims), "claim")
    return f"{confirmed} of {claims} confirmed by running the step again" if report.claims else "not tried"


def _patch(patch: str, *, whole: bool = False) -> Parts:
    """Yield a diff as it is; what is only to be pasted would fill the screen, so it is said where to get it."""
    if patch.startswith("---"):
        yield ""
        for line in patch.splitlines():
            inner = line[1:].lstrip()
            words = text(line[: len(line) - len(inner)] + clean(inner))
            words.stylize({"+": "green", "-": "red"}.get(line[:1], "dim"))
            yield indented(words, 2)
        yield ""
    elif patch and whole:
        yield ""
        yield from (indented(text(line), 2) if line else "" for line in patch.splitlines())
        yield ""
    elif patch:
        yield hanging(text(("·", "dim")), text("the lines to paste: --save-patch FILE"), 2)


def _precisions(report: Report) -> Parts:
    """Yield how the step came out in each precision, as it was audited, without any change."""
    for name, state, words in unchanged(report):
        width = 15 if report.mode == "infer" else 9
        yield hanging(text((f"{name:<{width}}", "dim")), text((state, _STATES[state]), words), 2)


def unchanged(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield how the step came out in each precision that was tried, as it is, without the plan.

    These are its name, a word for its state, and what is to be written behind that.
    """
    if report.mode == "infer":
        yield from _each_way(report)
        return
    named = {report.precision: report.outcomes.get("settled"), **report.outcomes}
    for name in ("fp16", "bf16"):
        outcome = named.get(name)
        if outcome is None:
            continue
        rounded = rounding_baseline(report.outcomes, other=name != report.precision)
        words = f"{outcome.at_scale}: {clean(outcome.words)}"
        if rounded is None or not outcome.magnifies(rounded):
            yield name, "harmed" if outcome.harmed else "healthy", words
        else:
            yield name, "inconclusive", f"{words}; rounded weights: {percent(rounded.error)}"


def _each_way(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield how the forwards came out in each precision, cast and under autocast."""
    for name, outcome in report.outcomes.items():
        precision, dash, cast = name.partition("-")
        if dash:
            state = "harmed" if outcome.harmed else "healthy"
            if precision == report.precision and outcome.magnifies(report.outcomes.get("rounded")):
                state = "inconclusive"
            yield f"{precision} {cast}", state, f": {clean(outcome.words)}"


def _steps(plan: Plan) -> Parts:
    yield _step("precision", clean(plan.precision))
    if plan.fp32_modules:
        kept = f", {_OUTPUTS[plan.outputs]}" if plan.outputs else ""
        yield _step("in FP32", ", ".join(map(clean, plan.fp32_modules)) + kept)
    if plan.keep_inputs:
        yield _step("not cast", ", ".join(map(clean, plan.keep_inputs)))
    if plan.fp32_lines:
        yield _step("in FP32", ", ".join(map(clean, plan.fp32_lines)))
    if plan.recipe:
        yield _step("recipe", clean(plan.recipe))
    if plan.in_bf16:
        yield _step("in bf16", clean(plan.in_bf16))
    if plan.scaler is not None:
        yield _step("scaler", scaler_call(plan.scaler))


def _step(name: str, words: str) -> "RenderableType":
    return hanging(text((f"{name:<9}", "dim")), text((words, "bold")), 2)


def scaler_call(scaler: ScalerPlan) -> str:
    """Return the call a person would write."""
    default = ScalerPlan(scaler.init_scale)
    names = ("growth_factor", "backoff_factor", "growth_interval")
    others = [name for name in names if getattr(scaler, name) != getattr(default, name)]
    arguments = [f"{name}={getattr(scaler, name):g}" for name in others]
    scale = scale_words(scaler.init_scale).replace("^", "**")
    return f"GradScaler({', '.join([f'init_scale={scale}', *arguments])})"
