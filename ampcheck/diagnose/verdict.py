"""The verdict on a report: one word and one sentence, made from the findings that count and from what was seen."""

from dataclasses import replace
from functools import partial

from ampcheck.diagnose.gaps import of_trace, told_gaps, unjudged, unseen_words
from ampcheck.diagnose.recipe_sentence import recipe_sentence
from ampcheck.diagnose.rules import diagnose
from ampcheck.diagnose.rules.scales_tried import scales_by_hand
from ampcheck.diagnose.subjects import place_with_class
from ampcheck.diagnose.suspects import held_in
from ampcheck.diagnose.tables import Loss, measured_loss, scale_curve
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import GAVE_IN
from ampcheck.values.outcome import magnification, magnified
from ampcheck.values.report import Report, by_place
from ampcheck.values.trace import Phase, Site
from ampcheck.values.verdict import Coverage, Health, Verdict
from ampcheck.values.wording import clean, count, location, percent, place, plural, power, scale_words

Answer = tuple[Health, str]
#: Codes named in a sentence; of more, how many there are.
NAMED_CODES = 3


def diagnosed(report: Report, coverage: Coverage) -> Report:
    """Return a report with its findings and its verdict, given how much was seen; a rule that fails saw nothing."""
    failed: list[str] = []
    findings = diagnose(report, partial(fails, failed))
    return judged(
        replace(report, findings=findings),
        replace(coverage, gaps=(*failed, *coverage.gaps)) if failed else coverage,
    )


def fails(failed: list[str], code: str, error: Exception) -> None:
    """Take note of a rule that ended with an error."""
    why = f"{type(error).__name__}: {error}"
    failed.append(f"what {code} looks for was not judged: an internal error of ampcheck, {why}")


def judged(report: Report, coverage: Coverage | None = None) -> Report:
    """Return a report with the verdict on it; what was seen is what its verdict so far says, where nothing is given."""
    held = coverage or report.verdict.coverage
    covered = replace(report, verdict=replace(report.verdict, coverage=held))
    return replace(covered, verdict=judge(covered))


def judged_by_trace(report: Report) -> Report:
    """Return a report with a verdict that knows no more of what was seen than the traces say."""
    return judged(report, of_trace(report))


def judge(report: Report) -> Verdict:
    """Return the verdict on a report: unsafe if and only if a finding of severity error counts."""
    word, sentence = (
        _of_recipes(report)
        or _unsafe(report)
        or _unknown(report)
        or _partly(report)
        or _risk(report)
        or (Health.SAFE, f"{_setting(report)} {_is(report)} safe here: {_figures(report)}")
    )
    behind = {Health.UNSAFE: Severity.ERROR, Health.RISK: Severity.WARNING}.get(word)
    codes = dict.fromkeys(finding.code for finding in report.findings if finding.severity is behind)
    return Verdict(word, sentence, tuple(codes), report.verdict.coverage)


def came_out_well(report: Report) -> bool:
    """Tell whether loss and gradients were shown to be those of FP32, whatever lies between.

    So they are where rounding anything at all would move them as much.
    """
    settled = report.outcomes.get("settled")
    return settled is not None and (not settled.harmed or magnified(report.outcomes))


def _of_recipes(report: Report) -> Answer | None:
    """Return what recipes do to the step, where they were what was asked about."""
    if report.recipes is None or not report.judgeable or report.low.failure is not None:
        return None
    word, sentence = recipe_sentence(report, report.recipes)
    gaps = told_gaps(report) if word == Health.SAFE else []
    if gaps:
        return Health.PARTLY_AUDITED, f"{'; '.join(gaps)}; {sentence}"
    return Health(word), sentence


# -- unsafe


def _unsafe(report: Report) -> Answer | None:
    worst = next((finding for finding in report.findings if finding.severity is Severity.ERROR), None)
    if worst is None:
        return None
    failure = report.low.failure
    if worst.code == "AMP301" and failure is not None:
        at = location(failure.file, failure.line) or clean(failure.module) or "the step"
        kind = clean(failure.kind)
        what = "the forward" if report.mode == "infer" else "the step"
        shown = (
            f"{report.precision} {report.cast} stops {what}: {kind} at {at}, where FP32 runs without error"
        )
        return Health.UNSAFE, shown
    origin = worst.origin
    seen = origin is not None and origin in report.low.sites and origin.phase is not Phase.STATE
    if worst.code == "AMP101" and origin is not None and seen:
        return Health.UNSAFE, _forward_overflow(report, origin)
    return Health.UNSAFE, f"{_blamed(report, worst)} {_is(report)} not safe: {clean(worst.message)}"


def _forward_overflow(report: Report, site: Site) -> str:
    held = held_in(report, site)
    what = f"exceeds {held.max:.5g}" if report.low.sites[site].infs else "is the first to give NaN"
    wide = by_place(report.reference).get(site.place)
    if report.low.sites[site].infs and wide is not None and wide.amax <= held.max:
        what = "is the first to give inf"
    at = f" ({location(site.file, site.line)})" if site.file else ""
    scaled = report.precision == "fp16" and report.mode == "train"
    helps = "; a loss scale alone cannot prevent it" if scaled else ""
    return f"{held.name} overflows in the forward: {place_with_class(report, site)} {what}{at}{helps}"


def _blamed(report: Report, worst: Finding) -> str:
    """Return the setting that an error is about: where the scale alone is wrong, not the one that heals it."""
    settled = report.outcomes.get("settled")
    if report.precision == "fp32" and worst.code == "AMP419":  # another thread runs in half precision
        return "this script"
    if settled is None or settled.harmed:
        return _setting(report)
    if worst.code == "AMP204":
        return f"{report.precision} without a loss scale"
    if worst.code == "AMP202" and report.refused_scales:
        return f"{report.precision} with loss scale {power(max(report.refused_scales))}"
    return _setting(report)


# -- unknown


def _unknown(report: Report) -> Answer | None:
    shown = _ill(report) or _unseen(report) or _untrained(report) or _unlowered(report)
    return (Health.UNKNOWN, shown) if shown else None


def _ill(report: Report) -> str:
    """Return what can be said of a step from which FP32 itself comes with an inf or NaN."""
    if report.judgeable:
        return ""
    sites = {site: stats for site, stats in report.reference.sites.items() if site.phase is Phase.FORWARD}
    first = next((site for site, stats in sites.items() if stats.nans), None)
    first = first or next((site for site, stats in sites.items() if stats.infs), None)
    where = f" ({location(first.file, first.line)})" if first is not None and first.file else ""
    begins = f": it begins in {place(first)}{where}" if first is not None else ""
    what = "no output is" if report.mode == "infer" else "the loss is not"
    return f"{what} finite in FP32 either{begins}; fix that first, then audit {report.precision}"


def _unseen(report: Report) -> str:
    if report.dry:
        return f"dry run: only dtypes and casts were seen, no values, so {report.precision} was not judged"
    if report.loop is not None and not report.loop.recorded and not report.reference.sites:
        return _unrecorded(report)
    known = any(stats.numel for stats in report.low.sites.values())
    return "" if known else "no verdict: no floating-point result was recorded"


def _unrecorded(report: Report) -> str:
    """Return what can be said of a loop of which no number was seen."""
    loop = report.loop
    assert loop is not None
    if loop.steps:
        skips = f"; {loop.skipped} of {plural(loop.steps, 'step')} skipped" if loop.first_scales else ""
        return f"no step was recorded, so nothing was judged{skips}"
    if any(what.startswith(GAVE_IN) for what in report.low.not_audited):
        return "an internal error of ampcheck ended the watch before it saw a step; the script continued without it"
    if loop.children:
        return "no training was seen in this process; what its child processes did was not seen"
    return "no training was seen: no optimizer stepped, and nothing was updated after a backward"


def _untrained(report: Report) -> str:
    """Return what can be said of a loop that changed no weight."""
    coverage = report.verdict.coverage
    if report.loop is None or coverage.completed:
        return ""
    if coverage.skipped:
        skipped = f"all {count(coverage.skipped)} steps were" if coverage.skipped > 1 else "the only step was"
        return f"no step was completed: {skipped} skipped, so nothing was trained in {report.precision}"
    if coverage.raised:
        return f"the script ended with {clean(coverage.raised)} before a step was completed"
    return "no step was completed, so nothing was trained"


def _unlowered(report: Report) -> str:
    """Return what can be said of a script that trains in FP32."""
    if report.precision != "fp32":
        return ""
    coverage = report.verdict.coverage
    asked = f"{coverage.asked} was asked for ({clean(coverage.asked_by)}), and " if coverage.asked else ""
    eighths = list(dict.fromkeys(site.dtype for site in report.low.sites if site.dtype.startswith("float8")))
    if eighths:
        first = next(site for site in report.low.sites if site.dtype == eighths[0])
        return (
            f"{asked}the script computes in FP8 ({', '.join(eighths)}, first in {place(first)}), which was seen and "
            "not judged; the rest trains in FP32"
        )
    missed = [unseen_words(coverage)] if coverage.unseen else list(coverage.gaps)
    if missed:
        return f"{asked}{'; '.join(missed)}; nothing that was seen was held in half precision"
    return f"{asked}the script trains in FP32: nothing was held in half precision"


# -- partly audited, risk, safe


def _partly(report: Report) -> Answer | None:
    gaps = told_gaps(report)
    if not gaps:
        return None
    warnings = _warnings(report)
    shown = f"works, with {plural(warnings, 'warning')}" if warnings else "shows nothing wrong"
    shown = "shows nothing else" if not warnings and unjudged(report) else shown
    return Health.PARTLY_AUDITED, f"{'; '.join(gaps)}; what was seen of {_setting(report)} {shown}"


def _risk(report: Report) -> Answer | None:
    settled = report.outcomes.get("settled")
    ignored = [held.finding for held in report.suppressed if held.finding.severity is Severity.ERROR]
    if ignored:
        codes = list(dict.fromkeys(clean(finding.code) for finding in ignored))
        named = ", ".join(codes[:NAMED_CODES]) + (" and others" if len(codes) > NAMED_CODES else "")
        kept = "does not count" if len(ignored) == 1 else "do not count"
        return Health.RISK, f"{_setting(report)}: {plural(len(ignored), 'error')} ({named}) {kept} here"
    if settled is not None and settled.harmed:
        if magnified(report.outcomes):
            why = magnification(report.outcomes, report.precision)
            shown = f"is inconclusive on these weights: {clean(settled.words)}, but {why}"
            return Health.RISK, f"{_setting(report)} {shown}"
        tested = "rounded" in report.outcomes
        but = "" if tested else "; ampcheck did not test whether any rounding would do the same"
        return Health.RISK, f"{_setting(report)} differs from FP32 here: {clean(settled.words)}{but}"
    warnings = _warnings(report)
    shown = f"works here, with {plural(warnings, 'warning')}: {_figures(report)}"
    return (Health.RISK, f"{_setting(report)} {shown}") if warnings else None


def _warnings(report: Report) -> int:
    return sum(finding.severity is Severity.WARNING for finding in report.findings)


def _figures(report: Report) -> str:
    settled = report.outcomes.get("settled")
    if report.mode == "infer":
        return clean(settled.words) if settled is not None else "its outputs were not compared with FP32's"
    loss = measured_loss(report, Phase.BACKWARD)
    if not loss.live:
        return f"no gradient was held in {report.precision}"
    lost = percent(loss.share) if loss.lost else "none"
    return f"{lost} of {count(loss.live)} gradient elements underflow{_unscaled(report, loss)}"


def _unscaled(report: Report, loss: Loss) -> str:
    """Return what it would be without a loss scale, where there is one and that is another number."""
    if not report.log2_scale:
        return ""
    point = scale_curve(report, (0,))[0]
    share = point.underflowed.low / point.nonzero if point.nonzero else 0.0
    return f" ({percent(share)} without scaling)" if percent(share) != percent(loss.share) else ""


def _setting(report: Report) -> str:
    """Return what was judged: precision and loss scale, and whether that ran only because a CPU stood in for CUDA."""
    return f"{_scaled(report)}{' on a CPU in place of CUDA' if report.verdict.coverage.stood_in else ''}"


def _is(report: Report) -> str:
    """Return the verb after a setting: weights are several, autocast and a precision are one."""
    return "are" if _scaled(report).endswith(" weights") else "is"


def _scaled(report: Report) -> str:
    if report.mode == "infer" or report.cast == "weights":
        return f"{report.precision} {report.cast}"
    if report.loop is not None and report.loop.scaling and not report.log2_scale:
        return f"{report.precision} with an unknown loss scale"
    if not (report.log2_scale or (report.loop is not None and report.loop.first_scales)):
        return f"{report.precision} without a loss scale" if report.precision == "fp16" else report.precision
    if report.loop is not None and scales_by_hand(report.loop) and not report.log2_scale:
        only = report.loop.only_scale
        return f"{report.precision} with {f'loss scale {scale_words(only)}' if only else 'a changing loss scale'}"
    scaled = report.log2_scale or report.precision == "fp16"
    return f"{report.precision} with loss scale {power(report.log2_scale)}" if scaled else report.precision
