"""What was not seen of a program, in words, and what the traces of a report say was seen."""

from collections.abc import Iterable, Mapping
from math import frexp

from ampcheck.diagnose.tables import TROUBLE_SHARE, first_overflow, measured_loss
from ampcheck.values.formats import BY_DTYPE, FP32
from ampcheck.values.modules import above
from ampcheck.values.outcome import MOVES_NOTHING
from ampcheck.values.report import Report, by_place
from ampcheck.values.trace import Phase, Site
from ampcheck.values.verdict import Coverage
from ampcheck.values.wording import clean, location, percent, place, plural, some

#: Operations that keep a number away from zero.
_LIMITED = frozenset({"add", "clamp", "clamp_min", "maximum"})
_NOT_TRIED = "ampcheck did not test whether that does harm"


def told_gaps(report: Report) -> list[str]:
    """Return what keeps a report from being safe although nothing is wrong with it, what matters most first."""
    coverage = report.verdict.coverage
    shown = [unseen_words(coverage)] if coverage.unseen else []
    shown += list(coverage.gaps)
    if coverage.asked:
        shown.append(
            f"{coverage.asked} was asked for ({clean(coverage.asked_by)}) and {report.precision} ran"
        )
    if coverage.raised:
        shown.append(
            f"the script ended with {clean(coverage.raised)} after {plural(coverage.completed, 'step')}"
        )
    if not coverage.judged:
        shown.append("no step was compared with FP32")
    shown += _in_eight_bits(report)
    return shown + unjudged(report) + motionless(report) + _too_small(report) + _own_limits(report)


def unjudged(report: Report) -> list[str]:
    """Return what the traces show where no gradient was compared, so that nobody knows whether it does harm."""
    if "settled" in report.outcomes:
        return []
    site = first_overflow(report)
    if site is not None:
        at = f" ({location(site.file, site.line)})" if site.file else ""
        return [f"{place(site)}{at} is not finite in {report.precision} and finite in FP32: {_NOT_TRIED}"]
    loss = measured_loss(report, Phase.BACKWARD)
    if loss.share < TROUBLE_SHARE:
        return []
    return [f"{percent(loss.share)} of the gradient elements became zero: {_NOT_TRIED}"]


def _in_eight_bits(report: Report) -> list[str]:
    """Return the layers in FP8 of which no report says what the rounding does."""
    names = [layer.module for layer in report.in_use if layer.runs and not layer.judged]
    if not names:
        return []
    return [f"what FP8 does in {some(names)} was not judged (AMP706)"]


def motionless(report: Report) -> list[str]:
    """Return which parameters get no gradient in FP32 either, so that nobody knows what low precision does to one.

    A layer that starts at zero keeps the gradient from everything before it, until a first update moves it.
    """
    silent = {
        _name(site): stats.numel
        for site, stats in report.reference.sites.items()
        if site.slot.startswith("param_grad[") and stats.zeros == stats.numel > 0
    }
    if not silent:
        return []
    wide = _gradients(report, reference=True)
    share = percent(sum(silent.values()) / sum(wide.values()))
    named = some(list(grouped(silent, wide)))
    return [f"{named}, {share} of the trained parameters: the gradient is exactly zero in FP32 too"]


def _too_small(report: Report) -> list[str]:
    """Return that the gradients moved no weight in FP32 either, so that their underflow says nothing."""
    grads = [stats for site, stats in report.reference.sites.items() if site.slot.startswith("param_grad[")]
    if not 0.0 < sum(stats.sum_squares for stats in grads) < MOVES_NOTHING**2:
        return []
    largest = max(stats.amax for stats in grads)
    return [
        f"the largest gradient is {largest:.2g}, which moves no weight in FP32 either: audit an earlier step"
    ]


def _own_limits(report: Report) -> list[str]:
    """Return the lines where a limit of half precision's own, as finfo gives it, is most of what FP32 has, too."""
    reference, found = by_place(report.reference), {}
    for constant in report.low.constants:
        wide, held = reference.get(constant.site.place), BY_DTYPE[constant.site.dtype]
        limits = {held.smallest_normal, held.epsilon} - {FP32.smallest_normal}
        if wide is None or constant.site.op not in _LIMITED or constant.value not in limits:
            continue
        if 2 * dict(wide.exponents()).get(frexp(constant.value)[1] - 1, 0) > wide.numel:
            at = location(constant.site.file, constant.site.line)
            found[at] = (
                f"{constant.site.op} at {at} gives {constant.value:.4g}, a limit of {held.name}, for most numbers: "
                "FP32 would have a limit of its own"
            )
    return list(found.values())


def unseen_words(coverage: Coverage) -> str:
    """Return whose gradients were not seen: the first names, and what share of the parameters they are."""
    share = percent(sum(coverage.unseen.values()) / max(1, coverage.elements))
    return f"{some(list(coverage.unseen))}, {share} of the trained parameters: no gradient was compared with FP32"


def grouped(unseen: Mapping[str, int], trained: Iterable[str]) -> dict[str, int]:
    """Return what was not seen of the trained parameters: modules of which nothing was, those with most elements first.

    >>> grouped({"g.0.weight": 8, "g.0.bias": 2, "d.late": 30}, ["g.0.weight", "g.0.bias", "d.early", "d.late"])
    {'d.late': 30, 'g.*': 10}
    """
    seen = {prefix for name in trained if name not in unseen for prefix in above(name)}
    sizes: dict[str, int] = {}
    members: dict[str, list[str]] = {}
    for name, size in unseen.items():
        free = next((prefix for prefix in above(name) if prefix not in seen), name)
        sizes[free] = sizes.get(free, 0) + size
        members.setdefault(free, []).append(name)
    ordered = sorted(sizes, key=lambda free: -sizes[free])
    return {members[free][0] if len(members[free]) == 1 else f"{free}.*": sizes[free] for free in ordered}


def of_trace(report: Report) -> Coverage:
    """Return what the traces say was seen; of trained parameters they know those that have a gradient in FP32."""
    low, wide = _gradients(report, reference=False), _gradients(report, reference=True)
    loop = report.loop
    skipped = loop.skipped if loop is not None else 0
    steps = loop.steps if loop is not None else len(report.low.steps)
    missing = {name: size for name, size in wide.items() if name not in low and report.low.failure is None}
    return Coverage(
        parameters=len(wide),
        elements=sum(wide.values()),
        unseen=grouped(missing, wide),
        operations=report.low.operations,
        casts=sum(count.calls for count in report.low.casts.values()),
        backwards=len(report.low.steps),
        judged=len(report.reference.steps),
        completed=max(0, steps - skipped),
        skipped=skipped,
    )


def _gradients(report: Report, *, reference: bool) -> dict[str, int]:
    """Return the elements of each parameter whose gradient a run has, by name."""
    trace = report.reference if reference else report.low
    return {
        _name(site): stats.numel for site, stats in trace.sites.items() if site.slot.startswith("param_grad[")
    }


def _name(site: Site) -> str:
    return f"{site.module}.{site.slot.removeprefix('param_grad[').removesuffix(']')}".lstrip(".")
