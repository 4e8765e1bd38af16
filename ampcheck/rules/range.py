"""Values of the forward that low precision cannot hold."""

from ampcheck.findings import Finding, Severity
from ampcheck.report import Report, by_place
from ampcheck.trace import Phase


def forward_overflow(report: Report) -> list[Finding]:
    """Values of the forward become inf or NaN in low precision and are finite in FP32.

    What it finds: the first operation, in order of execution, whose results are finite in the FP32 run and not
    in low precision; the operations that only pass the infinities on are counted with it.

    Why it matters: an infinity in the forward becomes NaN in the loss or in the gradients. No loss scale helps,
    because the scale acts after the forward.

    What to do: run the named module in FP32, or rescale its input; bf16 has the range of FP32.

    Example: the feed-forward of T5 in fp16, whose hidden activations exceed 65504.

    When to ignore it: where the infinity is meant and is absorbed, for instance by a softmax over masked scores.
    """
    reference = by_place(report.reference)
    bad = [
        (site, stats.nonfinite - reference[site.place].nonfinite)
        for site, stats in report.low.sites.items()
        if site.phase is Phase.FORWARD and site.op and site.place in reference
        if stats.nonfinite > reference[site.place].nonfinite
    ]
    if not bad:
        return []
    first, count = bad[0]
    amax = reference[first.place].amax
    where = f" in {first.module}" if first.module else ""
    return [
        Finding(
            "AMP101",
            "forward-overflow",
            "forward-overflow",
            Severity.ERROR,
            f"{first.op}{where} overflows {report.precision}: {count} elements are finite in FP32 (up to {amax:.4g}) "
            f"and exceed {report.format.max:.5g}",
            tuple(site for site, _ in bad),
            {"elements": count, "reference_amax": amax, "reached_sites": len(bad) - 1},
        )
    ]
