"""Integers that are kept in half precision on their way."""

from ampcheck.diagnose.rules.makers import lowers
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.report import Report
from ampcheck.values.trace import Integers, Phase, Site
from ampcheck.values.wording import location, percent

#: Lines that are named.
_FEW = 3


def wrong_integers(report: Report) -> list[Finding]:
    """Ids, positions or counts are kept in half precision, and become other integers.

    What it finds: a line that turns numbers into integers. In FP32 all of these numbers are whole, and half precision
    has rounded many of them to other ones: fp16 holds every integer up to 2,048 and bf16 up to 256, from there on
    every second one, then every fourth, and so on.

    Why it matters: the step reads other rows of a table, or writes to other places, than in FP32. Its gradients are
    right for what it has read, so nothing else shows it.

    What to do: keep ids, positions and counts in an integer dtype, or in FP32, from where they are made to where they
    are read.

    Example: a loader that packs ids and features into one tensor and casts that to half precision.

    When to ignore it: when the integers only fill a log.
    """
    worst: dict[tuple[str, int], Integers] = {}
    for found in report.low.integers:
        place = found.file, found.line
        if place not in worst or found.others > worst[place].others:
            worst[place] = found
    return [_finding(report, found) for found in worst.values()]


def _finding(report: Report, found: Integers) -> Finding:
    share = found.others / found.numbers
    site = Site("", "_to_copy", "output", Phase.FORWARD, report.dtype, found.file, found.line)
    return Finding(
        "AMP508",
        "wrong-integers",
        "precision-loss",
        Severity.ERROR,
        f"{percent(share)} of {found.numbers:,} integers are wrong, because {report.precision} has rounded them on "
        f"their way: it holds every integer only up to {2**report.format.precision:,}",
        (site,),
        {"share": share, "numbers": found.numbers},
        fix=(_kept(found),),
    )


def _kept(found: Integers) -> str:
    """Return how the numbers are kept, and where a script may round them, if few lines do."""
    lines = [line for line in lowers(found.file) if line != found.line]
    at = " and ".join(location(found.file, line) for line in lines) if len(lines) <= _FEW else ""
    before = f", before they are rounded at {at}" if at else " until they are read"
    return f"# keep these numbers in an integer dtype, or in FP32{before}"
