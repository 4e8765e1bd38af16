"""Numbers written into the code that half precision cannot hold."""

from collections.abc import Iterable, Iterator
from math import copysign, frexp, inf, isfinite

from ampcheck.diagnose.rules.gradients import gradient_overflow
from ampcheck.diagnose.rules.scales_tried import at_any_scale
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import BY_DTYPE, FP32, Format
from ampcheck.values.report import Report
from ampcheck.values.trace import Constant, Site


def lost_constant(report: Report) -> list[Finding]:
    """A number in the code (an eps, a bound, a fill) is another number in half precision.

    What it finds: Python numbers that an operation adds to, clamps or fills a half-precision tensor with, and that
    become zero in its format (1e-8 in fp16: all up to 2^-25), or 1 (1 - 1e-6 in bf16), or infinite (1e9 in fp16).

    Why it matters: an eps that is zero guards nothing: 0 + 1e-8 is 0, and its logarithm infinite. A bound that is 1
    lets log(1 - p) through. A fill that is -inf makes NaN of a row that is masked as a whole.

    What to do: choose by the dtype: torch.finfo(x.dtype).tiny or .eps as eps, 1 - torch.finfo(x.dtype).eps as
    bound, torch.finfo(x.dtype).min as fill; or compute the line in FP32.

    Example: x / (x.norm() + 1e-8) with autocast off on a half-precision x.

    When to ignore it: when no value ever comes near; if none did in this step (no zero beside the eps, no value at
    the bound), this is reported as information only.
    """
    gone = list(_gone(report))
    return [_finding(report, constants) for constants in _by_effect(gone)]


def rounded(value: float, fmt: Format) -> float:
    """Return a number as torch rounds it to a format: to FP32 first, each time to nearest even.

    >>> from ampcheck.values.formats import BF16, FP16
    >>> rounded(1e-8, FP16), rounded(1 - 1e-6, BF16), rounded(1e9, FP16), rounded(0.1, FP16)
    (0.0, 1.0, inf, 0.0999755859375)
    """
    return _nearest(_nearest(value, FP32), fmt)


def _nearest(value: float, fmt: Format) -> float:
    if not value or not isfinite(value):
        return value
    if fmt.overflows(abs(value)):
        return copysign(inf, value)
    exponent = max(frexp(value)[1] - 1, fmt.min_exponent)
    quantum = 2.0 ** (exponent - fmt.precision + 1)
    return copysign(round(value / quantum) * quantum, value)


def _gone(report: Report) -> Iterator[tuple[Constant, float]]:
    """Yield the numbers that became zero, one or infinite, and what they became."""
    for constant in report.low.constants:
        kept = rounded(constant.value, BY_DTYPE[constant.site.dtype])
        if kept != constant.value and abs(kept) in (0.0, 1.0, inf):
            yield constant, kept


def _by_effect(gone: list[tuple[Constant, float]]) -> Iterator[list[tuple[Constant, float]]]:
    """Yield the numbers together that become the same."""
    for kept in dict.fromkeys(kept for _, kept in gone):
        yield [row for row in gone if row[1] == kept]


def _finding(report: Report, rows: list[tuple[Constant, float]]) -> Finding:
    met = [row for row in rows if _meets(report, *row)]
    first, kept = (met or rows)[0]
    place = first.site.module or "the root or the loss"
    where = f" ({first.site.location})" if first.site.file else ""
    near = "no value was seen in a dry run" if report.dry else "no value in this step comes near it"
    seen = "values in this step reach it" if met else near
    ordered = dict.fromkeys(constant.site for constant, _ in met + rows)
    return Finding(
        "AMP104",
        "lost-constant",
        "lost-constant",
        Severity.ERROR if _breaks(report, ordered) else Severity.WARNING if met else Severity.INFO,
        f"{first.value:.10g} in {first.site.op} of {place}{where} is {kept:g} in {report.precision}; {seen}",
        tuple(ordered),
        {"value": first.value, "becomes": kept, "places": len(ordered)},
    )


def _breaks(report: Report, sites: Iterable[Site]) -> bool:
    """Tell whether gradients overflow in the line of a lost number at every scale, though FP32's suit fp16."""
    if not at_any_scale(report):
        return False
    lines = {site.location for site in sites if site.file}
    return any(site.location in lines for found in gradient_overflow(report) for site in found.sites[:1])


def _meets(report: Report, constant: Constant, kept: float) -> bool:
    """Tell whether the results hold what the number was there to keep away: a zero, a one, an infinity."""
    stats = report.low.sites.get(constant.site)
    if stats is None:
        return False
    if not kept:
        return stats.zeros > 0
    return stats.amax == abs(kept) if isfinite(kept) else stats.infs > 0
