"""Gradients that low precision cannot hold, and what a loss scale does for them."""

from ampcheck.findings import Finding, Severity
from ampcheck.report import Report, by_place
from ampcheck.stats import TensorStats
from ampcheck.trace import Phase, Site

#: Share of a parameter's non-zero gradient elements that may become zero before it is reported; below
#: this the update is changed by less than minibatch noise changes it.
LOST_SHARE = 0.05


def gradient_underflow(report: Report) -> list[Finding]:
    """Gradients of parameters become zero in low precision and are not zero in FP32.

    What it finds: parameters of which more than 5 % of the gradient elements that are non-zero in FP32 are zero
    at the loss scale in use.

    Why it matters: what became zero is not learned from; training slows down or stops without any message.

    What to do: use a GradScaler (fp16), a larger loss scale, or bf16, whose range is that of FP32.

    Example: a loss averaged over many elements, whose gradients are below 2^-24.

    When to ignore it: when the loss is a stand-in, since gradient magnitudes are then not yours.
    """
    reference = by_place(report.reference)
    lost = [(site, *_lost(site, report, reference)) for site in report.low.sites if site.slot.startswith("param_grad")]
    bad = sorted(
        ((site, gone, live) for site, gone, live in lost if live and gone / live > LOST_SHARE),
        key=lambda row: -row[1] / row[2],
    )
    if not bad:
        return []
    site, gone, live = bad[0]
    message = (
        f"{gone / live:.1%} of the gradient of {_name(site)} is lost to zero at loss scale 2^{report.log2_scale}"
        f" ({len(bad)} parameters lose more than {LOST_SHARE:.0%})"
    )
    return [
        Finding(
            "AMP201",
            "gradient-underflow",
            "grad-underflow",
            Severity.WARNING,
            message,
            tuple(site for site, _, _ in bad),
            {"lost_fraction": gone / live, "log2_scale": report.log2_scale, "parameters": len(bad)},
        )
    ]


def _lost(site: Site, report: Report, reference: dict[Site, TensorStats]) -> tuple[int, int]:
    before = reference.get(site.place)
    after = report.low.sites[site]
    if before is None or before.numel != after.numel:
        return 0, 0
    return max(0, after.zeros - before.zeros), before.nonzero


def _name(site: Site) -> str:
    return f"{site.module}.{site.slot[len('param_grad[') : -1]}".lstrip(".")


def gradient_overflow(report: Report) -> list[Finding]:
    """Gradients become inf or NaN in low precision at the loss scale that was run.

    What it finds: backward operations whose results are finite in FP32 and not in low precision, although the
    forward was healthy.

    Why it matters: GradScaler skips such steps and halves the scale; a step that overflows at every scale never
    trains.

    What to do: start from a smaller loss scale; where no scale is small enough, run the named module in FP32.

    Example: a temperature of 100 in front of a contrastive loss.

    When to ignore it: never, when it is an error; larger scales that were tried first are no finding.
    """
    if not report.low.steps or not any(step.nonfinite for step in report.low.steps):
        return []
    reference = by_place(report.reference)
    bad = [
        site
        for site, stats in report.low.sites.items()
        if site.phase is Phase.BACKWARD and site.place in reference
        if stats.nonfinite > reference[site.place].nonfinite
    ]
    healthy = all(step.loss - step.loss == 0.0 for step in report.low.steps)
    if not bad or not healthy:
        return []
    first = bad[0]
    return [
        Finding(
            "AMP202",
            "gradient-overflow",
            "backward-overflow",
            Severity.ERROR,
            f"the backward of {first.module or 'the loss'} ({first.op}) overflows at loss scale 2^{report.log2_scale}",
            tuple(bad),
            {"log2_scale": report.log2_scale, "reached_sites": len(bad) - 1},
        )
    ]
