"""Operations that refuse the dtypes that autocast gives them."""

from ampcheck.values.findings import Finding, Severity
from ampcheck.values.report import Report

#: What autocast refuses, and what does the same from the numbers before the sigmoid.
_FROM_LOGITS = {"binary_cross_entropy": "binary_cross_entropy_with_logits"}


def step_raises(report: Report) -> list[Finding]:
    """The step raises under autocast and runs through in FP32.

    What it finds: an exception in the low-precision run that the FP32 run of the same step does not raise.

    Why it matters: the training script stops at this line as soon as autocast is switched on.

    What to do: give both operands of the named line the same dtype, or run it with autocast off.

    Example: writing half-precision results into a float32 buffer with index_put.

    When to ignore it: never.
    """
    failure = report.low.failure
    if failure is None:
        return []
    site = failure.site(report.dtype)
    where = failure.module or "the root or the loss"
    return [
        Finding(
            "AMP301",
            "step-raises",
            "dtype-error",
            Severity.ERROR,
            f"{failure.op or 'the step'} in {where} raises under {report.precision} {report.cast}, not in FP32: "
            f"{failure.message}",
            (site,),
            fix=_instead(failure.op),
        )
    ]


def _instead(op: str) -> tuple[str, ...]:
    """Return the code to write where torch has an operation that autocast accepts."""
    if op not in _FROM_LOGITS:
        return ()
    return (
        "# leave out the sigmoid before it: the model returns logits",
        f"torch.nn.functional.{_FROM_LOGITS[op]}(logits, target)",
    )
