"""Gradients that low precision cannot hold, and what a loss scale does for them."""

from ampcheck.evidence import healthy_forward, newly_nonfinite
from ampcheck.findings import Finding, Severity
from ampcheck.outcome import HARM_VANISHED, Outcome
from ampcheck.report import Report, by_place, low_backward
from ampcheck.trace import Phase, Site

#: Where GradScaler starts.
DEFAULT_LOG2_SCALE = 16
#: Skipped steps at the start from which on the default scale is called wrong for a model: GradScaler is built
#: to skip a few, and then to find its scale.
MANY_SKIPS = 4


def gradient_underflow(report: Report) -> list[Finding]:
    """Gradients that matter become zero in low precision.

    What it finds: steps in which more than 15 % of the gradient elements of any weight (at least 1 % of their
    tensor's RMS) become zero: at the loss scale in use, or without a scale.

    Why it matters: what became zero is not learned from; training slows down or stops without any message.

    What to do: use a GradScaler (fp16) with at least the scale named; where no scale helps, keep the place in
    FP32; or use bf16, whose range is that of FP32.

    Example: a loss averaged over many elements, whose gradients are below 2^-24.

    When to ignore it: when the loss is a stand-in, since gradient magnitudes are then not yours.
    """
    settled, unscaled = report.outcomes.get("settled"), report.outcomes.get("unscaled")
    if settled is None or not healthy_forward(report):
        return []
    if settled.finite and settled.vanished > HARM_VANISHED:
        return [_underflow(report, settled, "whatever the scale" if settled.log2_scale else "")]
    if unscaled is not None and unscaled.finite and unscaled.vanished > HARM_VANISHED:
        return [_underflow(report, unscaled, f"a loss scale of 2^{report.log2_scale} heals it")]
    return []


def _underflow(report: Report, outcome: Outcome, remedy: str) -> Finding:
    names = list(outcome.vanished_by)
    worst = _first_lost(report, outcome)
    scale = f"at loss scale 2^{outcome.log2_scale}" if outcome.log2_scale else "without a loss scale"
    begins = _first_flushed(report, outcome.log2_scale)
    return Finding(
        "AMP201",
        "gradient-underflow",
        "grad-underflow",
        Severity.WARNING if report.stand_in_loss else Severity.ERROR,
        f"{outcome.vanished:.0%} of the gradient that matters becomes zero {scale} "
        f"({outcome.vanished_by[worst]:.0%} of {worst}){'; ' if remedy else ''}{remedy}",
        (_parameter(report, worst), *begins),
        {"vanished": outcome.vanished, "log2_scale": outcome.log2_scale, "parameters": len(names)},
    )


def _first_lost(report: Report, outcome: Outcome) -> str:
    """Return the parameter that the backward reaches first, among those that lose about as much as the worst."""
    most = max(outcome.vanished_by.values())
    order = {module.path: place for place, module in enumerate(report.low.modules)}
    lost = [name for name, share in outcome.vanished_by.items() if 2 * share >= most]
    return max(lost, key=lambda name: order.get(name.rpartition(".")[0], -1))


def _parameter(report: Report, name: str) -> Site:
    module, _, leaf = name.rpartition(".")
    slot = f"param_grad[{leaf}]"
    found = [site for site in report.low.sites if site.module == module and site.slot == slot]
    return found[0] if found else Site(module, "", slot, Phase.STATE, "float32")


def _first_flushed(report: Report, log2_scale: int) -> tuple[Site, ...]:
    """Return the backward operation, in order of execution, at which most of a gradient first becomes zero."""
    known = low_backward(report)
    for site in report.low.sites:
        stats = known.get(site.place)
        if stats is None or site.phase is not Phase.BACKWARD or site.dtype != report.dtype:
            continue
        if stats.nonzero and 2 * stats.flushed(report.format, log2_scale).low > stats.nonzero:
            return (site,)
    return ()


def gradient_overflow(report: Report) -> list[Finding]:
    """Gradients become inf or NaN in low precision although the forward was healthy.

    What it finds: backward operations whose results are finite in FP32 and not in low precision: at every
    loss scale, or at GradScaler's default of 2^16 and at least the next three below.

    Why it matters: GradScaler skips such steps and halves the scale; a step that overflows at every scale never
    trains.

    What to do: start from the smaller loss scale named; where no scale is small enough, run the named module in
    FP32.

    Example: a temperature of 100 in front of a contrastive loss.

    When to ignore it: where only the first steps overflow and training code tolerates skipped steps.
    """
    settled = report.outcomes.get("settled")
    if settled is not None and settled.grads_nonfinite and not settled.loss_nonfinite:
        bad = newly_nonfinite(report, Phase.BACKWARD, by_place(report.reference))
        return (
            []
            if not bad or not healthy_forward(report)
            else [
                _overflow(bad, Severity.ERROR, f"at every loss scale down to 2^{report.log2_scale}", report)
            ]
        )
    if len(report.refused_scales) >= MANY_SKIPS:
        bad = _beyond(report, max(report.refused_scales))
        remedy = f"at loss scale 2^{max(report.refused_scales)}; it settles at 2^{report.log2_scale} after {len(report.refused_scales)} skipped steps"
        severity = Severity.WARNING if report.stand_in_loss else Severity.ERROR
        return [_overflow(bad, severity, remedy, report)]
    return []


def _overflow(bad: list[Site], severity: Severity, where: str, report: Report) -> Finding:
    place = (
        f"{bad[0].op} in the backward of {bad[0].module or 'the root or the loss'}" if bad else "the backward"
    )
    return Finding(
        "AMP202",
        "gradient-overflow",
        "backward-overflow",
        severity,
        f"{place} overflows {where}",
        tuple(bad),
        {"log2_scale": report.log2_scale, "refused_scales": len(report.refused_scales)},
    )


def _beyond(report: Report, log2_scale: int) -> list[Site]:
    """Return the backward operations that FP32 says overflow at this scale, in order of execution."""
    known = low_backward(report)
    return [
        site
        for site in report.low.sites
        if site.phase is Phase.BACKWARD and site.dtype == report.dtype and site.place in known
        if known[site.place].overflowed(report.format, log2_scale).low
    ]
