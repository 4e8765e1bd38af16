"""The answer in one sentence: whether a precision is safe for a step."""

from enum import StrEnum

from ampcheck.findings import Finding, Severity
from ampcheck.loop import GAVE_IN
from ampcheck.outcome import HARM_VANISHED, magnification, magnified
from ampcheck.report import Report
from ampcheck.tables import (
    TROUBLE_SHARE,
    CurvePoint,
    Loss,
    best_scale,
    first_overflow,
    measured_loss,
    scale_curve,
)
from ampcheck.trace import Phase
from ampcheck.wording import (
    clean,
    clean_line,
    count,
    location,
    measure,
    percent,
    place,
    plural,
    power,
)

#: Ranks of a finding that are named; of more, how many there are.
NAMED_RANKS = 3


class Health(StrEnum):
    """What a step looks like at a glance."""

    SAFE = "safe"
    RISK = "risk"  #: works, with warnings
    UNSAFE = "unsafe"
    UNKNOWN = "unknown"  #: nothing was recorded that could be judged


def facts(report: Report) -> list[str]:
    """Return what was run, where, in a few words each, the most telling first."""
    told = [
        report.precision,
        f"loss scale {power(report.log2_scale)}" if report.log2_scale else "no loss scale",
    ]
    told += [clean(report.environment.get("device", ""))]
    told += [f"torch {clean(report.environment['torch'])}"] if "torch" in report.environment else []
    told += [plural(len(report.low.steps), "step")] if report.low.steps else []
    told += [plural(len(report.ranks), "rank")] if report.ranks else []
    return [fact for fact in told if fact]


def figures(finding: Finding) -> list[str]:
    """Return the numbers of a finding with their names."""
    more = len(finding.sites) - 1
    named = [measure(name, value) for name, value in finding.numbers.items()]
    named += [plural(more, "more site")] if more > 0 else []
    return [*named, f"on {_ranks(finding)}"] if finding.ranks else named


def _ranks(finding: Finding) -> str:
    names = [clean(name) for name in finding.ranks]
    return ", ".join(names) if len(names) <= NAMED_RANKS else plural(len(names), "rank")


def consequences(finding: Finding) -> list[str]:
    """Return what else was found and goes away with a finding's cause, a sentence each."""
    return [f"goes away with it: {clean(follower)}" for follower in finding.follows]


def corrected(finding: Finding) -> list[str]:
    """Return the lines of code as they should be."""
    return [clean_line(line) for line in finding.fix]


def tally(report: Report) -> str:
    """Return how many findings there are of each severity, the worst first; '' where there are none."""
    numbers = [(kind, sum(finding.severity is kind for finding in report.findings)) for kind in Severity]
    return " · ".join(plural(number, str(kind)) for kind, number in numbers if number)


def measured(report: Report) -> str:
    """Return what the loss scale in use did to the gradients, and from which one on they overflow."""
    loss = measured_loss(report, Phase.BACKWARD)
    lost = f"{percent(loss.share)} of {count(loss.live)} elements flushed" if loss.lost else "nothing flushed"
    over = next((point for point in scale_curve(report) if point.overflowed.low), None)
    first = (
        f"the first to overflow is {power(over.log2_scale)}"
        if over is not None
        else "none of these overflows"
    )
    if over is not None and over.log2_scale <= report.log2_scale and _came_out_well(report):
        elements = plural(over.overflowed.low, "element")
        first = f"from {power(over.log2_scale)} on {elements} overflow, which no parameter's gradient shows"
    return f"measured at {power(report.log2_scale)}: {lost}; {first}"


def verdict(report: Report) -> str:
    """Return the answer as one sentence."""
    return judge(report)[1]


def judge(report: Report) -> tuple[Health, str]:
    """Return how the step is, and the sentence that says why."""
    broken = _ill(report) or _raised(report) or _untrained(report) or _unknown(report) or _unlowered(report)
    if broken is None and not _came_out_well(report) and not _explained(report):
        broken = _forward_overflow(report) or _backward_overflow(report)
    return broken or _by_loss(report)


def _explained(report: Report) -> bool:
    """Tell whether an error that a re-run has proved says better what is wrong than where the numbers end."""
    worst = _worst(report)
    proved = worst is not None and worst.severity is Severity.ERROR and "settled" in report.outcomes
    return proved and worst is not None and worst.code != "AMP101"


def _worst(report: Report) -> Finding | None:
    return min(report.findings, key=lambda finding: finding.severity.rank, default=None)


def _came_out_well(report: Report) -> bool:
    """Tell whether a re-run has shown that loss and gradients are those of FP32, whatever lies between.

    So they are where rounding anything at all would move them as much.
    """
    settled = report.outcomes.get("settled")
    return settled is not None and (not settled.harmed or magnified(report.outcomes))


def _by_loss(report: Report) -> tuple[Health, str]:
    loss = measured_loss(report, Phase.BACKWARD)
    curve = scale_curve(report)
    explained = _explained(report) or _off_without_loss(report)
    if loss.share >= TROUBLE_SHARE and not _came_out_well(report) and not explained:
        text = f"{_setting(report)} loses {percent(loss.share)} of the gradient elements"
        return Health.UNSAFE, text + _unscaled(curve[0], loss) + _advice(report, best_scale(curve), loss)
    return _error(report) or _working(report, loss, curve[0])


def _off_without_loss(report: Report) -> bool:
    """Tell whether a re-run was harmed, and not by gradients that became zero."""
    settled = report.outcomes.get("settled")
    return settled is not None and settled.harmed and settled.vanished <= HARM_VANISHED


def _raised(report: Report) -> tuple[Health, str] | None:
    failure = report.low.failure
    if failure is None:
        return None
    at = location(failure.file, failure.line) or clean(failure.module) or "the step"
    kind = clean(failure.kind)
    return (
        Health.UNSAFE,
        f"{report.precision} autocast stops the step: {kind} at {at}, where FP32 runs through",
    )


def _ill(report: Report) -> tuple[Health, str] | None:
    """Return what can be said of a step from which FP32 itself comes with an inf or NaN."""
    if report.judgeable:
        return None
    sites = {site: stats for site, stats in report.reference.sites.items() if site.phase is Phase.FORWARD}
    first = next((site for site, stats in sites.items() if stats.nans), None)
    first = first or next((site for site, stats in sites.items() if stats.infs), None)
    where = f" ({location(first.file, first.line)})" if first is not None and first.file else ""
    begins = f": it begins in {place(first)}{where}" if first is not None else ""
    return (
        Health.UNKNOWN,
        f"the loss is not finite in FP32 either{begins}; before that is mended, {report.precision} cannot be judged",
    )


def _unknown(report: Report) -> tuple[Health, str] | None:
    if report.dry:
        told = f"whether {report.precision} is safe for its numbers is not known"
        return Health.UNKNOWN, f"dry run, dtypes and casts only: no value was seen, and {told}"
    known = any(stats.numel for stats in report.low.sites.values())
    if known or (report.loop is not None and report.worst is Severity.ERROR):
        return None
    return Health.UNKNOWN, "nothing can be said: no floating-point result was recorded"


def _untrained(report: Report) -> tuple[Health, str] | None:
    """Return what can be said of a loop of which no number was seen."""
    if report.loop is None or report.loop.recorded or report.reference.sites:
        return None
    if not report.loop.steps:
        text = "no training was seen: no optimizer stepped, and nothing was updated after a backward"
        if any(what.startswith(GAVE_IN) for what in report.low.not_audited):
            text = (
                "an error of ampcheck's own ended the watch before a step was seen; the script went on alone"
            )
        elif report.loop.children:
            text = "no training was seen in this process; what its child processes did was not seen"
        return Health.UNKNOWN, text
    if report.worst is Severity.ERROR:
        return None
    skips = f"; {report.loop.skipped} of {plural(report.loop.steps, 'step')} skipped"
    known = "no step was recorded, so nothing is known of its numbers"
    return Health.UNKNOWN, known + (skips if report.loop.first_scales else "")


def _unlowered(report: Report) -> tuple[Health, str] | None:
    """Return what can be said of a script that trains in FP32."""
    if report.precision != "fp32" or report.worst is Severity.ERROR:
        return None
    return Health.UNKNOWN, "the script trains in FP32: nothing was held in half precision"


def _forward_overflow(report: Report) -> tuple[Health, str] | None:
    told = (found.origin for found in report.findings if found.code == "AMP101")
    known = (site for site in told if site is not None and site in report.low.sites)
    site = next(known, None) or first_overflow(report, Phase.FORWARD)
    if site is None:
        return None
    what = f"exceeds {report.format.max:.5g}" if report.low.sites[site].infs else "is the first to give NaN"
    at = f" ({location(site.file, site.line)})" if site.file else ""
    helps = "; no loss scale helps" if report.precision == "fp16" else ""
    return Health.UNSAFE, f"{report.precision} overflows in the forward: {place(site)} {what}{at}{helps}"


def _backward_overflow(report: Report) -> tuple[Health, str] | None:
    site = first_overflow(report, Phase.BACKWARD)
    if site is None:
        return None
    fits = [point.log2_scale for point in scale_curve(report) if not point.overflowed.high]
    what = (
        f"{report.precision} gradients overflow at loss scale {power(report.log2_scale)}, first {place(site)}"
    )
    if not fits or max(fits) >= report.log2_scale:
        return Health.UNSAFE, what
    return Health.RISK, f"{what}; the largest scale predicted to fit is {power(max(fits))}"


def _advice(report: Report, best: CurvePoint | None, loss: Loss) -> str:
    if best is None:
        return "; every scale overflows"
    share = best.flushed.low / best.nonzero
    if best.log2_scale == report.log2_scale and not share:
        return (
            f"; none of them lies below what {report.precision} holds, so it is rounding that makes them zero"
        )
    if share > loss.share / 2:
        return "; no loss scale fits"
    kept = "would lose none" if not share else f"would lose {percent(share)}"
    return f"; {power(best.log2_scale)} {kept}"


def _error(report: Report) -> tuple[Health, str] | None:
    worst = _worst(report)
    if worst is not None and worst.severity is Severity.ERROR:
        return Health.UNSAFE, f"{_blamed(report, worst)} is not safe: {clean(worst.message)}"
    settled = report.outcomes.get("settled")
    if settled is None or not settled.harmed:
        return None
    if report.loop is not None and settled.finite:
        told = "nothing was run again, so this may be rounding that the model magnifies"
        return Health.RISK, f"{_setting(report)} is not like FP32 here: {clean(settled.words)}; {told}"
    if magnified(report.outcomes):
        why = magnification(report.outcomes, report.precision)
        return (
            Health.RISK,
            f"{_setting(report)} cannot be judged on these weights: {clean(settled.words)}, but {why}",
        )
    return Health.UNSAFE, f"{_setting(report)} is not safe: {clean(settled.words)}"


def _working(report: Report, loss: Loss, unscaled: CurvePoint) -> tuple[Health, str]:
    warnings = sum(finding.severity is Severity.WARNING for finding in report.findings)
    word = f"works here, with {plural(warnings, 'warning')}" if warnings else "is safe here"
    if not loss.live:
        figures = f"no gradient was held in {report.precision}"
    else:
        lost = percent(loss.share) if loss.lost else "none"
        figures = f"{lost} of {count(loss.live)} gradient elements flushed to zero"
        figures += _unscaled(unscaled, loss)
    return (Health.RISK if warnings else Health.SAFE), f"{_setting(report)} {word}: {figures}"


def _setting(report: Report) -> str:
    if report.loop is not None and not report.loop.first_scales and not report.log2_scale:
        return f"{report.precision} without a loss scale" if report.precision == "fp16" else report.precision
    scaled = report.log2_scale or report.precision == "fp16"
    return f"{report.precision} with loss scale {power(report.log2_scale)}" if scaled else report.precision


def _blamed(report: Report, worst: Finding) -> str:
    """Return the setting that an error is about: where the scale alone is wrong, not the one that heals it."""
    settled = report.outcomes.get("settled")
    if settled is None or settled.harmed:
        return _setting(report)
    if worst.code == "AMP204":
        return f"{report.precision} without a loss scale"
    if worst.code == "AMP202" and report.refused_scales:
        return f"{report.precision} with loss scale {power(max(report.refused_scales))}"
    return _setting(report)


def _unscaled(point: CurvePoint, loss: Loss) -> str:
    """Return what it would be without a loss scale, where that is another number."""
    share = point.flushed.low / point.nonzero if point.nonzero else 0.0
    return f" ({percent(share)} without scaling)" if percent(share) != percent(loss.share) else ""
