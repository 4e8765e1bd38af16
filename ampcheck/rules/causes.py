"""Which of several things that went wrong explains the others."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ampcheck.evidence import Suspect
from ampcheck.findings import Finding, Severity
from ampcheck.outcome import HARM_ERROR, HARM_VANISHED
from ampcheck.report import Report, by_place
from ampcheck.scaling.gradients import gradient_tensors
from ampcheck.scaling.rounding import flushed_share, relevant
from ampcheck.trace import Leap

#: What can be wrong by itself and break what comes after it, in the order of execution.
_CAUSES = ("AMP101", "AMP103", "AMP501", "AMP202")
#: What may only follow from one of these.
_FOLLOWERS = frozenset({"AMP202", "AMP203"})


def by_cause(report: Report, found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with those that one cause explains listed below it instead of beside it."""
    findings = tuple(found)
    errors = [f for code in _CAUSES for f in findings if (f.code, f.severity) == (code, Severity.ERROR)]
    if not errors:
        return findings
    cause = errors[0]
    followers = _FOLLOWERS | ({"AMP501"} if cause.code == "AMP202" else set())
    below = [f for f in findings if f is not cause and f.code in followers and _explains(report, cause, f)]
    told = replace(cause, follows=tuple(f"{f.code} {f.name}: {f.message}" for f in below))
    return tuple(told if f is cause else f for f in findings if f not in below)


def _explains(report: Report, cause: Finding, follower: Finding) -> bool:
    """Tell whether one place is to blame for both: promoting it heals all, or both begin in the same module."""
    if cause.code == "AMP202":
        return True  # that no scale fits is the same said of scales, and nothing healed what came before
    if cause.origin is None or follower.origin is None:
        return False
    places = list(_planned(report))
    if len(places) == 1:
        return places[0].holds(cause.origin) or not any(places[0].holds(site) for site in follower.sites[:1])
    return any(site.module == cause.origin.module for site in follower.sites)


def _planned(report: Report) -> Iterator[Suspect]:
    planned = report.outcomes.get("planned")
    if report.plan is not None and planned is not None and not planned.harmed:
        yield from (Suspect(module=name) for name in report.plan.fp32_modules)
        yield from (Suspect(line=line) for line in report.plan.fp32_lines)


def flushed(report: Report, leap: Leap) -> bool:
    """Tell whether an error begins because most of a result is too small for the format.

    Zeros out of a difference of nearly equal numbers are not that: in FP32 they are large enough.
    """
    reference = by_place(report.reference)
    held = [reference.get(site.place) for site in (leap.site, leap.dropped) if site.dtype == report.dtype]
    return any(
        stats is not None and 2 * stats.flushed(report.format).low > stats.nonzero > 0 for stats in held
    )


def begun_by_rounding(report: Report) -> list[Leap]:
    """Return where rounding begins to show, nothing where a result that was flushed before explains it."""
    begun = [leap for leap in report.leaps if not flushed(report, leap)]
    before = report.leaps[: report.leaps.index(begun[0])] if begun else ()
    return [] if any(leap.error > HARM_ERROR for leap in before) else begun


def lost_in_forward(report: Report) -> bool:
    """Tell whether zeros among the gradients come from rounding before the backward, not from underflow.

    FP32 says what is too small at a scale; if nothing is and the forward has gone wrong, that explains the rest.
    """
    if not begun_by_rounding(report):
        return False
    tensors = relevant(gradient_tensors(report)).values()
    scale = report.log2_scale
    return not any(flushed_share(stats, report.format, scale) > HARM_VANISHED for stats in tensors)
