"""What belongs beside a verdict: how the step came out, and what limits what is known of it."""

from collections.abc import Iterator

from ampcheck.values.report import Report
from ampcheck.values.wording import ELLIPSIS, clean, percent, power

#: Loss scales that are listed; of more, the first and the last.
_LISTED = 3


def settled(report: Report) -> str:
    """Return how the low-precision step came out against FP32; '' where that is not known."""
    outcome = report.outcomes.get("settled")
    if outcome is None or report.recipes is not None:
        return ""
    how = "against FP32" if report.plan is None else "run again"
    if report.loop is not None and outcome.log2_scale != report.log2_scale and outcome.at_scale:
        how += ", in an earlier step"
    comma = "," if report.plan is None and outcome.at_scale else ""
    rounded = report.outcomes.get("rounded")
    which = f", but not those of {clean(rounded.but)}," if rounded is not None and rounded.but else " alone"
    normal = (
        f"; rounding FP32's weights{which} gives {percent(rounded.grad_error)}" if rounded is not None else ""
    )
    normal = normal if outcome.finite and rounded is not None and rounded.finite else ""
    return f"{how}{comma}{outcome.at_scale}: {clean(outcome.words)}{normal}"


def refused(report: Report) -> str:
    """Return at which loss scales gradients overflowed before the one in use; '' where at none."""
    tried = [power(scale) for scale in report.refused_scales]
    if not tried:
        return ""
    listed = ", ".join(tried) if len(tried) <= _LISTED else f"{tried[0]} {ELLIPSIS} {tried[-1]}"
    return f"gradients overflowed at {listed}: GradScaler would skip such steps and halve the scale"


def caveats(report: Report) -> Iterator[tuple[bool, str]]:
    """Yield what belongs beside the verdict, and of each whether it limits what the verdict is worth."""
    if report.stand_in_loss:
        yield True, "the loss is a stand-in: gradient magnitudes are not those of your training"
    if skipped := refused(report):
        yield True, skipped
