"""Results that are finite and wrong: rounding that an operation magnifies, updates that rounding swallows."""

from dataclasses import replace
from math import isfinite, sqrt

from ampcheck.diagnose.rules.backward import ALL_LOST, is_rebuilt, limited_scaled, lost_in_backward
from ampcheck.diagnose.rules.backward_unscaled import unscaled_backward
from ampcheck.diagnose.rules.causes import begun_by_rounding, lost_in_forward
from ampcheck.diagnose.rules.faint import faint_gradient
from ampcheck.diagnose.rules.makers import changed_at
from ampcheck.diagnose.rules.told_backward import in_words, told_backward
from ampcheck.diagnose.suspects import (
    beginning,
    healthy_forward,
    hidden_overflow,
    leaves_domain,
    newly_nonfinite,
    origin_first,
)
from ampcheck.values.doubts import DoubtKind
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.modules import within
from ampcheck.values.op_kinds import DIFFERENCES
from ampcheck.values.outcome import (
    AGREES,
    HARM_ERROR,
    HARM_UNDERFLOW,
    MAGNIFIES,
    STILL_DESCENDS,
    Outcome,
    magnified,
)
from ampcheck.values.plan import Tried
from ampcheck.values.report import Report, by_place
from ampcheck.values.trace import ErrorJump, Phase, Site
from ampcheck.values.wording import clean, percent

#: Places in FP32 up to which a plan points at a culprit; a longer list says that rounding is everywhere.
FEW_PLACES = 4
#: Where the gradient of a bias is kept.
_BIAS = "param_grad[bias]"


def precision_loss(report: Report) -> list[Finding]:
    """Results that are far off, or undefined: rounding which one place magnifies.

    What it finds: a step whose gradients or loss differ from FP32 by more than 15 %, without overflow and without
    underflow, and the few places whose promotion to FP32 heals it, tried by re-running; the first operation that gives
    NaN because rounding moved its input outside its domain; in a script also rows of a weight that get no gradient in
    any recorded step, and have a part of 1 % or more of it in FP32. A warning from 5 % and six times what rounding the
    FP32 weights alone does.

    Why it matters: training runs, the loss falls, and the model learns something else.

    What to do: keep the named place in FP32. It is where coordinates, positions, angles, differences of nearly equal
    numbers or long sums are held in too few bits. Without one, audit weights after training (--weights FILE).

    Example: positions above 2048 in fp16, or above 256 in bf16, which cannot be told apart.

    When to ignore it: where FP32 with nothing but its weights rounded is off by a sixth as much or more. Then it is a
    warning: the model magnifies any rounding, as deep networks can at random initialisation. In a script, where that
    was not tried, it is a warning at most; so is a part with 0.012 % of the gradient, but where Adam steps it. In an
    audit it is a warning where the forward agrees and no gradient is off by 53 % or more: they still point where
    FP32's do, and a step lowers the loss by 85 % or more of what it should.
    """
    settled = report.outcomes.get("settled")
    if settled is None or settled.raised or not _is_off(settled) or hidden_overflow(report):
        return faint_gradient(report) or _unexplained(report)
    if not healthy_forward(report):
        return _undefined(report)
    if settled.underflow > HARM_UNDERFLOW and not lost_in_forward(report):
        return []
    begun = begun_by_rounding(report)
    judged = settled.finite and (settled.worst > HARM_ERROR or settled.outputs)
    if (not begun and (report.error_jumps or not judged)) or _is_added(report, begun):
        return []
    healing = _healing(report)
    few = 0 < len(healing) <= FEW_PLACES and (_points(report) or _pinned(report))
    numbers = {"grad_error": settled.grad_error, "loss_error": settled.loss_error}
    sites, where, limited = _harmed(report), "", None
    if begun:
        sites = tuple(dict.fromkeys((report.placed or _place(report, begun[0]), begun[0].site)))
        numbers["error"] = begun[0].error
        where = f"; it begins at {_beginning(report, begun[0], sites[0])}"
    if report.mode == "infer":
        numbers = {"output_error": settled.error}
        sites = _kept_site(report) if not begun else sites
    elif not _is_forward(report, begun) and (backward := lost_in_backward(report)):
        limited = limited_scaled(report, *backward)
        (sites, where), numbers["error"] = _in_backward(report, begun, *backward), backward[1]
    elif report.loop is not None and unscaled_backward(report):
        return []  # nothing else is known of it, and AMP408 says it
    remedy = _remedy(report, healing) if few else _unhealed(report)
    gentle = "" if begun or not where else _still_descends(report, sites[0], numbers["error"])
    severity = Severity.WARNING if gentle else _severity(report, proved=few, placed=bool(where))
    message = f"{settled.words}{where}{remedy}{gentle}"
    return [
        limited or Finding("AMP501", "precision-loss", "precision-loss", severity, message, sites, numbers)
    ]


def _is_forward(report: Report, begun: list[ErrorJump]) -> bool:
    """Tell whether bits are lost in the forward, wherever else it shows: the loss itself is far off."""
    off = bool(begun) and report.outcomes["settled"].loss_error > HARM_ERROR
    return off or _from_saved(begun) or _vanishes(report, begun)


def _is_off(settled: Outcome) -> bool:
    """Tell whether a step is harmed by more than an overflow that it leaves behind."""
    left = settled if isfinite(settled.next_error) else replace(settled, next_error=0.0)
    return left.harmed


def _descent(error: float) -> float:
    """Return how much of FP32's descent a step of the same length has at least, along a gradient with this error."""
    return sqrt(1.0 - error**2)


def _still_descends(report: Report, site: Site, error: float) -> str:
    """Return how far a step of an audit still goes down, though gradients are off, and what goes back from a place.

    From a sum that is the gradient of a bias nothing goes back.
    """
    settled = report.outcomes["settled"]
    ends = site.op == "sum" and any(
        (one.module, one.slot) == (site.module, _BIAS) for one in report.low.sites
    )
    if report.loop is not None or max(settled.worst, 0.0 if ends else error) >= STILL_DESCENDS:
        return ""
    kept = percent(_descent(settled.grad_error))
    return f"; a step of the same length still lowers the loss by at least {kept} of what FP32's does"


def _unexplained(report: Report) -> list[Finding]:
    """Return a warning where a step is no harm, and further off than rounding the weights explains."""
    settled, rounded = report.outcomes.get("settled"), report.outcomes.get("rounded")
    if settled is None or rounded is None or settled.harmed or settled.outputs or not settled.finite:
        return []
    if settled.grad_error <= max(AGREES, MAGNIFIES * rounded.error):
        return []
    begun = begun_by_rounding(report)
    sites = tuple(dict.fromkeys((_place(report, begun[0]), begun[0].site))) if begun else _harmed(report)
    where = f"; it begins at {_beginning(report, begun[0], sites[0])}" if begun else ""
    message = f"{settled.words}; rounding only the FP32 weights moves it by {percent(rounded.error)}{where}"
    numbers = {"grad_error": settled.grad_error, "rounded": rounded.error}
    return [Finding("AMP501", "precision-loss", "precision-loss", Severity.WARNING, message, sites, numbers)]


def _is_added(report: Report, begun: list[ErrorJump]) -> bool:
    """Tell whether it begins where something is added to gradients that hold the loss scale, which AMP421 says."""
    added = {one.location for one in report.doubts if one.kind is DoubtKind.ADDED}
    return bool(begun) and begun[0].site.location in added


def _in_backward(
    report: Report, begun: list[ErrorJump], site: Site, error: float
) -> tuple[tuple[Site, ...], str]:
    """Return where a backward is off, and what to say of it: what its line gives in the forward may be off as well."""
    same = next((jump for jump in begun if site.location and jump.site.location == site.location), None)
    if same is None:
        return (site,), f"; {told_backward(report, site, error)}"
    dropped = _place(report, same)
    return (dropped, site), f"; it begins at {_beginning(report, same, dropped)}"


def _vanishes(report: Report, begun: list[ErrorJump]) -> bool:
    """Tell whether it begins at a difference of which most is zero, and not in FP32.

    However small that is beside the rest: a backward that divides by it is off by far more.
    """
    pair = report.errors.get(begun[0].site) if begun and begun[0].site.op in DIFFERENCES else None
    return pair is not None and 2 * pair.lost > pair.live


def _place(report: Report, jump: ErrorJump) -> Site:
    """Return where bits were lost: where a backward rebuilds numbers, not what it computes again for that."""
    line = [one for one in report.errors if one.location == jump.site.location and is_rebuilt(report, one)]
    again = bool(line) and jump.dropped.phase is Phase.RECOMPUTE
    return line[-1] if again else beginning(report, jump)


def _from_saved(begun: list[ErrorJump]) -> bool:
    """Tell whether it begins where a backward computes with numbers that were rounded as they were saved."""
    return bool(begun) and begun[0].site.phase is Phase.BACKWARD


def _harmed(report: Report) -> tuple[Site, ...]:
    """Return the layer that is furthest off, in a loop: where that begins is not known."""
    settled = report.outcomes["settled"]
    layer = settled.off[0].rpartition(".")[0] if settled.off else ""
    if settled.parts and settled.grad_error <= HARM_ERROR:  # the others agree
        worst = max(settled.parts, key=lambda name: settled.parts[name])
        layer = worst if worst in {module.path for module in report.low.modules} else worst.rpartition(".")[0]
    if report.loop is None:
        return ()
    return (Site(layer, "", "output", Phase.BACKWARD, report.dtype),) if layer else ()


def _kept_site(report: Report) -> tuple[Site, ...]:
    """Return the last operation, in low precision, of what the plan keeps in FP32."""
    kept = report.plan.fp32_modules[:1] if report.plan is not None else ()
    held = [
        site
        for site in report.low.sites
        if site.op and site.dtype == report.dtype and any(within(site.module, m) for m in kept)
    ]
    return tuple(held[-1:])


def _remedy(report: Report, healing: tuple[str, ...]) -> str:
    rest = report.outcomes.get("rest")
    beside = "; keeping everything else in FP32 does not" if rest is not None and rest.harmed else ""
    line = f", and so does {report.placed.location} alone" if report.placed is not None else ""
    return f"; keeping {', '.join(healing)} in FP32 prevents it{line}{beside}"


def _severity(report: Report, *, proved: bool, placed: bool) -> Severity:
    """Return how bad it is: an error is a harmed step, whether or not a remedy was found.

    In a script, where nothing is run again, an error that no operation explains is a remark: the verdict says it too.
    """
    settled = report.outcomes["settled"]
    if proved or not settled.finite:
        return Severity.ERROR
    known = "rounded" in report.outcomes  # without it, rounding anything may do the same
    if report.loop is not None and not placed and (not known or _magnified(report)):
        return Severity.INFO
    return Severity.ERROR if known and not _magnified(report) else Severity.WARNING


def _magnified(report: Report) -> bool:
    """Tell whether the model magnifies any rounding, and that is all.

    It is not where a backward's result, of what the forward saved in half precision, is off by half of it or more, and
    rounded weights explain less than half of the error.
    """
    if not magnified(report.outcomes):
        return False
    begun = begun_by_rounding(report)
    rounded = report.outcomes["rounded"].grad_error
    saved = _from_saved(begun) and 2 * begun[0].error > ALL_LOST
    return not saved or 2 * rounded > report.outcomes["settled"].grad_error


def _unhealed(report: Report) -> str:
    if report.loop is not None and "rounded" not in report.outcomes:
        return "; nothing was run again: the model may magnify any rounding"
    if _magnified(report):
        share = percent(report.outcomes["rounded"].error)
        return f"; no single place causes it: rounding only the FP32 weights moves the gradient by {share}"
    if report.loop is not None:
        rounded = report.outcomes["rounded"]
        but = f" but not those of {clean(rounded.but)}" if rounded.but else ""
        return f"; rounding only the FP32 weights{but} moves the gradient by {percent(rounded.error)}"
    planned = report.outcomes.get("planned")
    if planned is not None and _healing(report):
        places = ", ".join(_healing(report))
        return f"; keeping {places} in FP32 gives {percent(planned.error)}, too little to call it the cause"
    return "; no remedy was tried" if report.plan is None else "; no small set of places heals it"


def _undefined(report: Report) -> list[Finding]:
    reference = by_place(report.reference)
    bad = origin_first(report, newly_nonfinite(report, Phase.FORWARD, reference), reference)
    if not leaves_domain(report, bad[0], reference):
        return []
    first = bad[0]
    count = report.low.sites[first].nans - reference[first.place].nans
    return [
        Finding(
            "AMP501",
            "precision-loss",
            "precision-loss",
            Severity.ERROR,
            f"{first.op} in {first.module or 'the root or the loss'} gives {count:,} NaN that FP32 does not have: "
            "rounding moved its input outside its domain",
            tuple(bad),
            {"elements": count, "spreads_to": len(bad) - 1},
        )
    ]


def _beginning(report: Report, jump: ErrorJump, dropped: Site) -> str:
    place = in_words(jump.site)
    jumped = f"whose result is off by {percent(jump.error)}"
    if dropped == jump.site:
        return f"{place}, {jumped}"
    what = "a cast" if dropped.op == "_to_copy" else dropped.op
    maker = changed_at(report, dropped.location) if dropped.op.endswith("_") else None
    held = (
        f" and {clean(maker.name)} is made in half precision at {maker.location}" if maker is not None else ""
    )
    if dropped not in report.low.sites:  # outside of the step, where nobody knows how
        return f"{place}, {jumped}, because of {what} in half precision ({dropped.location}){held}"
    return f"{place}, {jumped}, because {what} ({dropped.location}) rounds away bits that it needs{held}"


def _points(report: Report) -> bool:
    """Tell whether a plan points at a culprit: it heals clearly, and leaves most modules in low precision."""
    settled, planned = report.outcomes["settled"], report.outcomes.get("planned")
    if planned is None or report.plan is None:
        return False
    low = {site.module for site in report.low.sites if site.op and site.dtype == report.dtype}
    kept = {module for module in low for name in report.plan.fp32_modules if within(module, name)}
    return planned.clearly_heals(settled) and 2 * len(kept) <= len(low)


def _pinned(report: Report) -> bool:
    """Tell whether a plan points at a culprit however much of the model it holds.

    One line of it heals by itself, or all the rest of the model in FP32 does not.
    """
    planned, rest = report.outcomes.get("planned"), report.outcomes.get("rest")
    if planned is None or not planned.clearly_heals(report.outcomes["settled"]):
        return False
    return report.placed is not None or (rest is not None and rest.harmed)


def _healing(report: Report) -> tuple[str, ...]:
    """Return the places whose promotion was tried and heals."""
    confirmed = any(verdict.tried is Tried.CONFIRMED for verdict in report.claims)
    if report.plan is None or report.plan.precision != report.precision or not confirmed:
        return ()
    return report.plan.fp32_modules + report.plan.fp32_lines
