"""Stored numbers that casting a model ruins before it runs: parameters, buffers, and the inputs cast with them."""

from ampcheck.values.findings import Finding, Severity
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site, Stored
from ampcheck.values.wording import count, percent, plural


def cast_overflow(report: Report) -> list[Finding]:
    """A stored value becomes infinite when the model is cast.

    What it finds: parameters, buffers and inputs with values beyond the largest number of fp16, where FP32 with
    nothing but these cast gives wrong outputs, tried by a run.

    Why it matters: `.half()` says nothing. The infinity is in the model from then on, and a later `.float()` does
    not bring the number back.

    What to do: keep the named module in FP32, with its original numbers; or load in bf16, which has FP32's range.

    Example: a running variance of 2e6 in a batch norm.

    When to ignore it: where the infinity is meant, as in a mask; then the outputs are right and nothing is said.
    """
    return [_finding(report, "AMP105", one) for one in report.stored if one.infinite]


def cast_rounding(report: Report) -> list[Finding]:
    """A stored value is rounded or underflow when the model is cast, and that alone makes outputs wrong.

    What it finds: buffers, parameters and inputs that lose digits or become zero in the cast, where FP32 with
    nothing but these cast gives wrong outputs, far more so than with all weights rounded; tried by a run.

    Why it matters: `.float()` in the forward comes too late, the bits are gone. Frequencies, positions, timesteps
    and running variances need more of them than weights do.

    What to do: keep the named module in FP32, with its original numbers; leave a named input as it is; hold
    counts and positions as integers, which no cast touches.

    Example: the rotary inv_freq in bf16, which is off by radians at position 6000; a timestep of 937.3, which is
    936 in bf16.

    When to ignore it: when the outputs that differ are not used.
    """
    return [_finding(report, "AMP505", one) for one in report.stored if not one.infinite]


_NAMES = {"AMP105": "cast-overflow", "AMP505": "cast-rounding"}


def _finding(report: Report, code: str, one: Stored) -> Finding:
    kind = _kind(code, one)
    settled = report.outcomes["settled"]
    cast = f"casting the {one.kind} {one.name} to {report.precision}"
    message = f"{cast} {_loss(one, report)}; this cast alone harms the FP32 model"
    return Finding(
        code,
        _NAMES[code],
        kind,
        Severity.ERROR,
        f"{message}: {settled.words}",
        _sites(report, one),
        {
            "elements": one.infinite or one.underflowed or one.elements,
            "largest_fp32_value": one.amax,
            "error": one.error,
        },
    )


def _kind(code: str, one: Stored) -> str:
    if code == "AMP105":
        return "cast-overflow"
    return "forward-underflow" if 2 * one.underflowed > one.elements else "precision-loss"


def _loss(one: Stored, report: Report) -> str:
    if one.infinite:
        most = f"largest {one.amax:.4g}, {report.precision} holds at most {report.format.max:.5g}"
        return f"makes {plural(one.infinite, 'element')} infinite ({most})"
    if one.underflowed:
        return f"makes {count(one.underflowed)} of {plural(one.elements, 'element')} zero"
    return f"rounds it by {percent(one.error)} (largest {one.amax:.4g})"


def _sites(report: Report, one: Stored) -> tuple[Site, ...]:
    """Return where it is stored, and where the error begins to show."""
    shown = tuple(jump.site for jump in report.error_jumps[:1])
    if one.kind == "input":
        return shown or (Site("", "", f"input[{one.name}]", Phase.FORWARD, report.dtype),)
    owner, _, name = one.name.rpartition(".")
    slot = f"param[{name}]" if one.kind == "parameter" else f"buffer[{name}]"
    return (Site(owner, "", slot, Phase.STATE, report.dtype), *shown)
