"""Which of several things that went wrong explains the others."""

from ampcheck.outcome import HARM_ERROR, HARM_VANISHED
from ampcheck.report import Report, by_place
from ampcheck.scaling.gradients import gradient_tensors
from ampcheck.scaling.rounding import flushed_share, relevant
from ampcheck.trace import Leap


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
