"""What to train with, and what running the step again said of every claim in it."""

from collections.abc import Iterator

from ampcheck.renderers.view import Block, Code, Fact, Facts, Item, Items, Kind, Section, Tone
from ampcheck.renderers.words import scaler_call
from ampcheck.values.outcome import rounding_baseline
from ampcheck.values.plan import Claim, Plan, Tried
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health
from ampcheck.values.wording import percent, plural

_STATES = {"healthy": Tone.GOOD, "harmed": Tone.BAD, "inconclusive": Tone.UNSURE}
_TRIED = {Tried.CONFIRMED: Tone.GOOD, Tried.REFUTED: Tone.BAD, Tried.NOT_TRIED: Tone.UNSURE}
_OUTPUTS = {"cast-back": "results cast back", "promote": "results left in FP32"}


def plan(report: Report) -> Section | None:
    """Return the plan, how the step came out in each precision, the claims and the change to the code."""
    trained = report.mode == "train" and report.recipes is None and not report.dry
    blocks = list(_blocks(report))
    return Section("plan", "Plan", how_tried(report), blocks) if blocks or trained else None


def how_tried(report: Report) -> str:
    """Return how many of the plan's claims a re-run has confirmed, or why there was none to confirm."""
    made = report.plan
    if report.claims:
        confirmed = sum(verdict.tried is Tried.CONFIRMED for verdict in report.claims)
        claims = plural(len(report.claims), "claim")
        return f"{confirmed} of {claims} confirmed by running the step again"
    if made is None and report.loop is not None:
        return "none: a script's steps are seen as they run; audited by itself, its model gets a plan"
    if made is None:
        return "none" if report.outcomes else "none: the step was not run again"
    if made.precision != report.precision or _placed(made):
        return "not tried"
    if made.scaler is not None:
        return "the loss scale follows from the gradients in FP32, without a trial"
    return "no change is needed, so there was nothing to try"


def _placed(made: Plan) -> bool:
    """Tell whether a plan keeps something out of low precision, or runs it in another way."""
    return any((made.fp32_modules, made.fp32_lines, made.recipe, made.in_bf16, made.keep_inputs))


def _blocks(report: Report) -> Iterator[Block]:
    if report.plan is not None:
        yield Facts(list(_steps(report.plan)))
    outcomes = [
        Item(f"{state}{words}", f"{name}:", _STATES[state]) for name, state, words in unchanged(report)
    ]
    for items in (outcomes, list(map(_claim, report.claims))):
        if items:
            yield Items(items)
    if report.patch:
        yield Code(report.patch)
    if report.advice:
        yield Items([Item(sentence) for sentence in report.advice])


def _steps(made: Plan) -> Iterator[Fact]:
    yield Fact("precision", (made.precision,), Kind.CODE)
    if made.fp32_modules:
        yield Fact("in FP32", made.fp32_modules, Kind.CODE)
    if made.fp32_modules and made.outputs:
        yield Fact("results", (_OUTPUTS[made.outputs],))
    if made.keep_inputs:
        yield Fact("not cast", made.keep_inputs, Kind.CODE)
    if made.keep_state:
        yield Fact("in FP32", ("what is carried from call to call",))
    if made.fp32_lines:
        yield Fact("lines in FP32", made.fp32_lines, Kind.CODE)
    if made.recipe:
        yield Fact("recipe", (made.recipe,), Kind.CODE)
    if made.in_bf16:
        yield Fact("in bf16", (made.in_bf16,), Kind.CODE)
    if made.scaler is not None:
        yield Fact("scaler", (scaler_call(made.scaler),), Kind.CODE)


def _claim(claim: Claim) -> Item:
    change = f"{claim.before or '?'} → {claim.after or '?'}" if claim.before or claim.after else ""
    return Item(f"{claim.claim}: {claim.tried}", "", _TRIED[claim.tried], change)


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
        words = f"{outcome.at_scale}: {outcome.words}"
        shown = f"{name} as it is" if report.plan is not None and _placed(report.plan) else name
        if rounded is None or not outcome.magnifies(rounded):
            loop = report.loop is not None and report.verdict.word is Health.UNSAFE and not outcome.harmed
            beside = "; what is wrong lies outside of a step's gradients" if loop else ""
            yield shown, "harmed" if outcome.harmed else "healthy", f"{words}{beside}"
        else:
            yield shown, "inconclusive", f"{words}; rounded weights: {percent(rounded.error)}"


def _each_way(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield how the forwards came out in each precision, cast and under autocast."""
    for name, outcome in report.outcomes.items():
        precision, dash, cast = name.partition("-")
        if dash:
            state = "harmed" if outcome.harmed else "healthy"
            if precision == report.precision and outcome.magnifies(report.outcomes.get("rounded")):
                state = "inconclusive"
            yield f"{precision} {cast}", state, f": {outcome.words}"
