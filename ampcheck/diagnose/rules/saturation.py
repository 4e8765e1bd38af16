"""Results of a sigmoid that half precision rounds to 1, or to 0: what is computed of them is gone."""

from collections.abc import Iterator

from ampcheck.values.findings import Finding
from ampcheck.values.report import Report
from ampcheck.values.wording import clean

#: Operations that come near a limit.
_LIMITED = frozenset({"sigmoid", "tanh", "_softmax"})
#: Error of what is computed of such a result, as 1 - p is, from which on it is the limit.
_GONE = 0.5


def at_its_limit(report: Report, finding: Finding) -> Iterator[str]:
    """Yield which line before a zero that FP32 does not have is to run in FP32 too, where a result is at its limit."""
    if finding.code != "AMP103" or finding.origin is None:
        return
    other = (jump for jump in report.error_jumps if jump.dropped.location != finding.origin.location)
    limited = (jump.dropped for jump in other if jump.dropped.op in _LIMITED and jump.error > _GONE)
    if (site := next(limited, None)) is not None:
        yield f"# and the same at {site.location}, where {clean(site.op)} rounds to its limit"
