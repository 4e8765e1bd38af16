"""What low precision saves in a step, counted from what both runs wrote."""

from ampcheck.values.formats import DTYPE_BYTES
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Trace


def forward_bytes(report: Report) -> tuple[int, int]:
    """Return the bytes that the forward's operations wrote in a step: in low precision, and in FP32."""
    # In a script low precision lists steps, too, that FP32 did not run beside, and sums only the others.
    steps = max(1, len(report.reference.steps))
    return _written(report.low) // steps, _written(report.reference) // steps


def _written(trace: Trace) -> int:
    return sum(
        stats.numel * DTYPE_BYTES.get(site.dtype, 0)
        for site, stats in trace.sites.items()
        if site.phase is Phase.FORWARD and site.op and site.slot.startswith("output")
    )
