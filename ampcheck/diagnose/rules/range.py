"""Values of the forward that low precision cannot hold."""

from itertools import takewhile

from ampcheck.diagnose.rules.causes import underflowed
from ampcheck.diagnose.rules.constants import rounded
from ampcheck.diagnose.suspects import held_in, leaves_domain, meets_zero, newly_nonfinite, origin_first
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import HALVES, Format
from ampcheck.values.op_kinds import CASTS
from ampcheck.values.outcome import magnified
from ampcheck.values.report import Report, by_place
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import plural

#: Head room below which the next batch may overflow: activations vary by about an octave between batches.
NEAR_FACTOR = 2.0


def forward_overflow(report: Report) -> list[Finding]:
    """Values of the forward become inf or NaN in low precision and are finite in FP32.

    What it finds: the first operation, in order of execution, whose results are finite in the FP32 run and not
    in low precision; the operations that only pass the infinities on are counted with it.

    Why it matters: an infinity in the forward becomes NaN in the loss or in the gradients. No loss scale helps,
    because the scale acts after the forward.

    What to do: run the named module in FP32, or rescale its input; bf16 has the range of FP32.

    Example: the feed-forward of T5 in fp16, whose hidden activations exceed 65504.

    When to ignore it: where the infinity is meant and is absorbed, for instance by a softmax over masked
    scores. If the step still came out as in FP32, this is reported as information only.
    """
    bad, reference = _bad_forward(report)
    if not bad or meets_zero(report, bad[0], reference) or leaves_domain(report, bad[0], reference):
        return []
    first, wide, held = bad[0], reference.get(bad[0].place), held_in(report, bad[0])
    numbers = {"elements": _count(first, report, reference), "spreads_to": len(bad) - 1}
    cast = _cast_before(report, bad)
    what = _overflowing(first, held, None if cast else wide)
    return [
        Finding(
            "AMP101",
            "forward-overflow",
            "forward-overflow",
            _harm(report),
            f"{what}: {_elements(numbers['elements'], 'is', 'are')} finite in FP32"
            f"{'' if wide is None else f' (largest {wide.amax:.4g})'}; {held.name} holds at most "
            f"{held.max:.5g}{_before(held, wide)}{_absorbed(report)}",
            (*cast, *bad),
            numbers if wide is None else numbers | {"largest_fp32_value": wide.amax},
        )
    ]


def _cast_before(report: Report, bad: list[Site]) -> list[Site]:
    """Return the line outside of the step that has cast what overflows, where there is one."""
    made = (jump.dropped for jump in report.error_jumps if jump.dropped not in report.low.sites)
    read = bad[0].op == "_to_copy" and bad[0].dtype not in HALVES  # cast up, and infinite before that
    return [site for site in made if read and site.op == "_to_copy"][:1]


def _before(held: Format, wide: TensorStats | None) -> str:
    """Return where an overflow begins of which the result would fit."""
    fits = wide is not None and wide.amax <= held.max
    return (
        ", which something exceeds on the way there: an input that is cast, or a partial sum" if fits else ""
    )


def _overflowing(site: Site, held: Format, wide: TensorStats | None) -> str:
    """Return what overflows: an operation, or a cast, which FP32 does not have."""
    if wide is not None:
        return f"{site.op} in {_place(site)} overflows {held.name}"
    return f"a cast to {held.name} in {_place(site)} overflows"


def forward_underflow(report: Report) -> list[Finding]:
    """A value becomes zero in low precision, and a logarithm or quotient of it infinite.

    What it finds: the first operation whose results are infinite in low precision, where the FP32 result is
    small enough for the format: a logarithm, quotient or root of a number that was underflow, or of a
    difference that rounding closed.

    Why it matters: an epsilon such as 1e-8 is zero in fp16, so the guard against log(0) is none there.

    What to do: compute the named module in FP32; or use a function that takes logits; or an epsilon that the
    format holds (at least 1e-4 in fp16).

    Example: log(p + 1e-8) of a half-precision probability.

    When to ignore it: where the infinity is masked out afterwards; then it is reported as information only.
    """
    bad, reference = _bad_forward(report)
    if not bad:
        return _underflowed(report)
    if not meets_zero(report, bad[0], reference):
        return []
    first = bad[0]
    count = _count(first, report, reference)
    zeroed = _zeroed_before(report, first, reference, count)
    there = f", which {_named_place(zeroed[0])} gives" if zeroed else ""
    return [
        Finding(
            "AMP103",
            "forward-underflow",
            "forward-underflow",
            _harm(report),
            f"{first.op} in {_place(first)} meets a zero that FP32 does not have{there or _guard(report, first)}: "
            f"{_elements(count, 'becomes', 'become')} infinite in {report.precision}, in FP32 nothing there exceeds "
            f"{reference[first.place].amax:.4g}{_absorbed(report)}",
            (*zeroed, *bad),
            {
                "elements": count,
                "largest_fp32_value": reference[first.place].amax,
                "spreads_to": len(bad) - 1,
            },
        )
    ]


def _elements(number: int, one: str, many: str) -> str:
    return f"{plural(number, 'element')} {one if number == 1 else many}"


def _zeroed_before(
    report: Report, first: Site, reference: dict[Site, TensorStats], count: int
) -> tuple[Site, ...]:
    """Return what gives zeros for numbers larger than what guards a line: FP32 at that line heals too little."""
    least = max(_guards(report, first), default=0.0)
    for site in takewhile(lambda one: one != first, report.low.sites):
        wide = reference.get(site.place)
        there = site.module == first.module and site.location != first.location and site.line
        if wide is None or not there or site.phase is not Phase.FORWARD or site.dtype != report.dtype:
            continue
        enough = sum(
            n for e, n in wide.exponents() if 2.0**e >= least and e < report.format.underflow_exponent
        )
        if 2 * min(enough, report.low.sites[site].zeros - wide.zeros) >= count:
            return (site,)
    return ()


def _named_place(site: Site) -> str:
    return f"{'a cast' if site.op in CASTS else site.op} ({site.location})"


def _guards(report: Report, site: Site) -> list[float]:
    """Return numbers of a line that are zero themselves: they were to keep others from zero."""
    return [
        row.value
        for row in report.low.constants
        if row.value and not rounded(row.value, report.format) and row.site.location == site.location
    ]


def _guard(report: Report, site: Site) -> str:
    """Return which number of the line that was to keep it from zero is zero itself."""
    gone = _guards(report, site)
    return f", since {gone[0]:g} on that line is 0 in {report.precision}" if gone else ""


def _underflowed(report: Report) -> list[Finding]:
    """Return the finding for a result that became zero and harmed the step without an infinity in the forward."""
    gone = [jump for jump in report.error_jumps if underflowed(report, jump)]
    if not gone or _harm(report) is not Severity.ERROR:
        return []
    first = gone[0]
    # An operation in FP32 shows first what was zero before it.
    made, other = (
        (first.site, first.dropped) if first.site.dtype == report.dtype else (first.dropped, first.site)
    )
    return [
        Finding(
            "AMP103",
            "forward-underflow",
            "forward-underflow",
            Severity.ERROR,
            f"most of what {_named_place(made) if made.op in CASTS else made.op} in {_place(made)} gives in FP32 is "
            f"zero in {report.precision}: {report.outcomes['settled'].words}",
            (made, other),
            {"error": first.error},
        )
    ]


def near_overflow(report: Report) -> list[Finding]:
    """Values of the forward come within a factor of two of the largest number.

    What it finds: results in low precision whose largest magnitude is above half of what the format holds. Values
    that somebody chose are left out: finfo.max itself, and the bounds of clamps.

    Why it matters: activations change from batch to batch and grow during training; the next batch may overflow.

    What to do: watch the module over more batches (--steps), or keep it in FP32 before it breaks.

    Example: a residual stream that has grown to 40,000 in fp16.

    When to ignore it: when the value is bounded by construction.
    """
    limit = report.format.max / NEAR_FACTOR
    meant = {report.format.max, *(abs(rounded(row.value, report.format)) for row in report.low.constants)}
    near = [
        (site, stats)
        for site, stats in report.low.sites.items()
        if site.op
        and site.phase is Phase.FORWARD
        and site.dtype == report.dtype
        and limit < stats.amax
        and not stats.nonfinite  # what overflows is reported as that
        and stats.amax not in meant
        and site.op not in _CONSTANT
    ]
    if not near:
        return []
    site, stats = max(near, key=lambda row: row[1].amax)
    return [
        Finding(
            "AMP102",
            "near-overflow",
            "near-overflow",
            Severity.WARNING,
            f"{site.op} in {_place(site)} reaches {stats.amax:.5g} of {report.format.max:.5g} that {report.precision} "
            "holds",
            tuple(site for site, _ in near),
            {"amax": stats.amax, "limit": report.format.max, "places": len(near)},
        )
    ]


#: Operations that write a constant somebody chose, such as finfo.min in a mask.
_CONSTANT = frozenset(
    {"masked_fill", "masked_fill_", "fill_", "full", "full_like", "where", "scalar_tensor", "new_full"}
)


def _bad_forward(report: Report) -> tuple[list[Site], dict[Site, TensorStats]]:
    reference = by_place(report.reference)
    return origin_first(report, newly_nonfinite(report, Phase.FORWARD, reference), reference), reference


def _count(site: Site, report: Report, reference: dict[Site, TensorStats]) -> int:
    wide = reference.get(site.place)
    return report.low.sites[site].nonfinite - (0 if wide is None else wide.nonfinite)


def _harm(report: Report) -> Severity:
    settled = report.outcomes.get("settled")
    if settled is None:
        return Severity.WARNING
    return Severity.ERROR if settled.harmed and not magnified(report.outcomes) else Severity.INFO


def _absorbed(report: Report) -> str:
    if _harm(report) is not Severity.INFO or any(doubt.harms for doubt in report.doubts):
        return ""
    if magnified(report.outcomes):
        return "; the loss and all gradients are still finite"
    return "; the loss and all gradients still match FP32"


def _place(site: Site) -> str:
    return site.module or "the root or the loss"
