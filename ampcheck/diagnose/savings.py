"""What low precision saves in a step, counted from what both runs wrote."""

from ampcheck.values.formats import DTYPE_BYTES
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Trace


def forward_bytes(report: Report) -> tuple[int, int]:
    """Return the bytes that the forward's operations wrote in a step: in low precision, and in FP32."""
    return _written(report.low), _written(report.reference)


def _written(trace: Trace) -> int:
    whole = sum(
        stats.numel * DTYPE_BYTES.get(site.dtype, 0)
        for site, stats in trace.sites.items()
        if site.phase is Phase.FORWARD and site.op and site.slot.startswith("output")
    )
    return whole // max(1, len(trace.steps))
