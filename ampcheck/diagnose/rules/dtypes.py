"""Operations that refuse the dtypes that autocast gives them."""

from ampcheck.diagnose.rules.loop_state import device_of
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.report import Report
from ampcheck.values.trace import Failure

#: What autocast refuses, and what does the same from the numbers before the sigmoid.
_FROM_LOGITS = {"binary_cross_entropy": "binary_cross_entropy_with_logits"}


def step_raises(report: Report) -> list[Finding]:
    """The step raises under autocast and runs through in FP32.

    What it finds: an exception in the low-precision run that the FP32 run of the same step does not raise. If the
    script catches it, it is found where it leaves a module without gradients.

    Why it matters: the training script stops at this line as soon as autocast is switched on, or trains without it.

    What to do: give both operands of the named line the same dtype, or run it with autocast off.

    Example: writing half-precision results into a float32 buffer with index_put.

    When to ignore it: never.
    """
    ended = report.low.failure
    found = [] if ended is None else [_finding(report, ended, ended.message)]
    caught = {failure.module: failure for failure in report.low.caught}
    return found + [
        _finding(
            report, failure, f"{failure.message}. The script goes on without it: {module} gets no gradient"
        )
        for module, failure in caught.items()
    ]


def _finding(report: Report, failure: Failure, message: str) -> Finding:
    where = failure.module or "the root or the loss"
    outside = failure.in_thread and "same dtype" in failure.message
    how = (
        "in a thread, where autocast is off: it holds only in the thread that switches it on"
        if outside
        else f"under {report.precision} {report.cast}, not in FP32"
    )
    return Finding(
        "AMP301",
        "step-raises",
        "dtype-error",
        Severity.ERROR,
        f"{failure.op or 'the step'} in {where} raises {how}: {message}",
        (failure.site(report.dtype),),
        fix=_within(report) if outside else _instead(failure.op),
    )


def _within(report: Report) -> tuple[str, ...]:
    """Return the code to write where a thread computes outside of autocast."""
    region = f"with torch.autocast({device_of(report)}, dtype=torch.{report.dtype}):"
    return f"{region}  # in the function that the thread runs", "    ...  # this line"


def _instead(op: str) -> tuple[str, ...]:
    """Return the code to write where torch has an operation that autocast accepts."""
    if op not in _FROM_LOGITS:
        return ()
    return (
        "# leave out the sigmoid before it: the model returns logits",
        f"torch.nn.functional.{_FROM_LOGITS[op]}(logits, target)",
    )
