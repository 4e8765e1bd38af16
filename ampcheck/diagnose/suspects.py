"""What points at a culprit: places in the order in which a re-run should suspect them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import inf

from ampcheck.values.formats import BY_DTYPE, HALVES, Format
from ampcheck.values.modules import within
from ampcheck.values.report import Report, by_place
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import ErrorJump, Phase, Site

#: A result this far off its reference is worth suspecting before one that is merely rounded.
SUSPICIOUS_ERROR = 0.05
#: How much larger than in FP32 a result may be in low precision, which has rounded everything before it.
DRIFT = 1.25
#: Backwards that leave out the gradients of what their forward has cut off.
_MASKS = frozenset({"threshold_backward", "hardtanh_backward"})
#: Operations that make infinities or NaN out of numbers close to those of FP32: at a pole, mostly at zero.
_WITH_POLES = frozenset(
    "log log2 log10 log1p div true_divide divide reciprocal rsqrt pow logit atanh xlogy".split()
)
#: Operations that make NaN beyond the edge of where they are defined.
_WITH_EDGES = frozenset("log log2 log10 log1p rsqrt sqrt pow acos asin acosh atanh logit".split())


@dataclass(frozen=True, slots=True)
class Suspect:
    """A module, or a line of functional code outside of modules, that may have to stay in FP32."""

    module: str = ""
    line: str = ""  #: "file:line"

    @property
    def name(self) -> str:
        """Return how a person would call it."""
        return self.module or self.line

    def holds(self, site: Site) -> bool:
        """Tell whether an operation ran there."""
        if self.line:
            return site.location == self.line
        return within(site.module, self.module)


#: Modules in front of a failing line that are tried before the line itself.
FEEDING = 3


def suspects(report: Report) -> list[Suspect]:
    """Return every place that works in low precision, the best evidence first."""
    reference = by_place(report.reference)
    ordered = [
        *(site for jump in report.error_jumps for site in (beginning(report, jump), jump.dropped, jump.site)),
        *_origins(report, reference, Phase.FORWARD),
        *_origins(report, reference, Phase.BACKWARD),
        *_wrong(report),
        *(site for site in report.low.sites if site.op and site.dtype == report.dtype),
        *_failed(report),
    ]
    return list(dict.fromkeys(found for site in ordered for found in _suspect(site)))


def _suspect(site: Site) -> Iterator[Suspect]:
    if site.module:
        yield Suspect(module=site.module)
    elif site.location:
        yield Suspect(line=site.location)


def newly_nonfinite(report: Report, phase: Phase, reference: dict[Site, TensorStats]) -> list[Site]:
    """Return the operations of a phase whose results are finite in FP32 only, in order of execution.

    What runs outside of a backward, behind one that went wrong, has its infinities from there: a script divides its
    gradients by a scale.
    """
    new = [
        site
        for site, stats in report.low.sites.items()
        if site.op and stats.nonfinite > reference.get(site.place, stats).nonfinite
    ]
    if phase is Phase.FORWARD:
        first = next((at for at, site in enumerate(new) if site.phase is Phase.BACKWARD), len(new))
        new = new[:first]
    return [site for site in new if site.phase is phase]


def recomputed_lower(report: Report) -> Site | None:
    """Return the operation that a backward runs again in less than the forward did, if what overflows begins there."""
    reference = by_place(report.reference)
    low = report.low.sites
    bad = (
        site
        for site in low
        if site.op and low[site].nonfinite > reference.get(site.place, low[site]).nonfinite
    )
    first = next(bad, None)
    if first is None or first.phase is not Phase.RECOMPUTE:
        return None
    same = (first.module, first.op, first.file, first.line)
    ran = {s.dtype for s in low if s.phase is Phase.FORWARD and (s.module, s.op, s.file, s.line) == same}
    return first if ran and first.dtype not in ran else None


def healthy_forward(report: Report) -> bool:
    """Tell whether every result of the forward that is finite in FP32 is finite in low precision."""
    return not newly_nonfinite(report, Phase.FORWARD, by_place(report.reference))


def hidden_overflow(report: Report) -> list[Site]:
    """Return what overflows in the backward of a step whose gradients are finite, but off."""
    settled = report.outcomes.get("settled")
    if settled is None or not settled.finite or not settled.harmed or not healthy_forward(report):
        return []
    reference = by_place(report.reference)
    bad = origin_first(report, newly_nonfinite(report, Phase.BACKWARD, reference), reference)
    if any(_before(report, site, bad[0]) for site in _wrong(report)[:1] if bad):
        return []  # it follows from what the forward has lost
    return [] if _are_masked(report) else bad


def _are_masked(report: Report) -> bool:
    """Tell whether a backward drops all results that are not finite, as a ReLU does with what its forward cut off."""
    backward = (site for site in report.low.sites if site.phase is Phase.BACKWARD and site.op)
    runs = [(op, list(sites)) for (_, op), sites in groupby(backward, lambda site: (site.module, site.op))]
    bad = [any(report.low.sites[site].nonfinite for site in sites) for _, sites in runs]
    after = {op for (op, _), was, now in zip(runs[1:], bad, bad[1:], strict=False) if was and not now}
    return bool(after) and after <= _MASKS


def origin_first(report: Report, bad: list[Site], reference: dict[Site, TensorStats]) -> list[Site]:
    """Return non-finite results in order, but the first one that can be their origin in front.

    A line may run an operation twice, on healthy numbers before the origin and on its infinities after it; both
    are one site. What FP32 holds there is then far from the largest number, and the operation has no pole.
    """
    meant = any(stats.nonfinite for site, stats in reference.items() if bad and site.phase is bad[0].phase)
    # An infinity that is meant makes NaN wherever it meets a zero, so there the first is taken as it comes.
    first = None if meant else next((s for s in bad if _can_begin(report, s, reference[s.place])), None)
    ordered = bad if first is None else [first, *(site for site in bad if site != first)]
    ordered = _without_absorbed(report, ordered)
    born = [jump for jump in report.error_jumps if jump.error == inf and jump.site in ordered]
    return [*(jump.dropped for jump in born[:1] if _before(report, jump.site, ordered[0])), *ordered]


def _before(report: Report, one: Site, other: Site) -> bool:
    order = list(report.low.sites)
    return order.index(one) <= order.index(other)


def _without_absorbed(report: Report, bad: list[Site]) -> list[Site]:
    """Return non-finite results without those that come before all of what heals the step: they do no harm.

    A mask of -inf is one, where FP32 holds a finite number and a softmax absorbs both.
    """
    planned = report.outcomes.get("planned")
    if planned is None or planned.harmed or report.plan is None or len(report.plan.fp32_modules) != 1:
        return bad
    healing = Suspect(module=report.plan.fp32_modules[0])
    held = [site for site in bad if healing.holds(site)]
    order = {site: at for at, site in enumerate(report.low.sites)}
    begins = min((at for site, at in order.items() if site.op and healing.holds(site)), default=0)
    if not held or begins < order[bad[0]]:
        return bad
    return [held[0], *(site for site in bad if order[site] > order[held[0]])]


def _can_begin(report: Report, site: Site, stats: TensorStats) -> bool:
    scale = report.log2_scale if site.phase is Phase.BACKWARD else 0
    held = BY_DTYPE.get(site.dtype)
    largest = stats.amax * DRIFT * 2.0**scale
    over = held is not None and held.overflows(largest)
    # what is cast up was in half precision before
    over = over or (
        site.op == "_to_copy" and site.phase is Phase.FORWARD and report.format.overflows(largest)
    )
    return over or site.op.rstrip("_") in _WITH_POLES | _WITH_EDGES


def meets_zero(report: Report, site: Site, reference: dict[Site, TensorStats]) -> bool:
    """Tell whether a new infinity comes from a pole, where the FP32 result is small enough for the format."""
    wide = reference.get(site.place)  # None for a cast, which FP32 does not have
    small = wide is not None and not report.format.overflows(wide.amax)
    return small and site.op.rstrip("_") in _WITH_POLES and not leaves_domain(report, site, reference)


def leaves_domain(report: Report, site: Site, reference: dict[Site, TensorStats]) -> bool:
    """Tell whether a new NaN, without an infinity, comes from a number outside of where it is defined."""
    low, wide = report.low.sites[site], reference.get(site.place)
    if wide is None or site.op.rstrip("_") not in _WITH_EDGES:
        return False
    return low.nans > wide.nans and low.infs <= wide.infs


def held_in(report: Report, site: Site) -> Format:
    """Return the format of a result: a script may hold fp16 beside a step in bf16."""
    return BY_DTYPE[site.dtype] if site.dtype in HALVES else report.format


def beginning(report: Report, jump: ErrorJump) -> Site:
    """Return where the bits were lost that an error needs: not where a result is exact anyway, but where a cast is off.

    A cast makes no error larger that is there before: what it adds is what it rounds away itself.
    """
    pair = report.errors.get(jump.dropped)
    itself = (pair is not None and pair.is_exact) or (
        jump.site.op == "_to_copy" and jump.site.dtype in HALVES
    )
    return jump.site if itself else jump.dropped


def _origins(report: Report, reference: dict[Site, TensorStats], phase: Phase) -> Iterable[Site]:
    """Return where non-finite values begin: first in order, then wherever FP32 exceeds the format by itself."""
    bad = newly_nonfinite(report, phase, reference)
    scale = report.log2_scale if phase is Phase.BACKWARD else 0
    beyond = [site for site in bad if reference[site.place].overflowed(report.format, scale).low]
    return [*origin_first(report, bad, reference)[:1], *bad[:1], *beyond]


def _wrong(report: Report) -> list[Site]:
    """Return the forward results that are far off, in order of execution."""
    return [
        site
        for site, pair in report.errors.items()
        if site.op and site.phase is Phase.FORWARD and pair.relative_rms > SUSPICIOUS_ERROR
    ]


def _failed(report: Report) -> Iterable[Site]:
    """Return where the step raised, then every other place: the first error hides those that follow it."""
    failure = report.low.failure
    if failure is None:
        return ()
    site = failure.site(report.dtype)
    ran = [site for site in report.reference.sites if site.op and site.phase is Phase.FORWARD]
    # A line outside of modules can only be kept in FP32 by a context around it, a module that feeds it by itself.
    feeding = [] if failure.module else _ran_before(site, ran)
    return (*feeding, site, *ran)


def _ran_before(site: Site, ran: list[Site]) -> list[Site]:
    """Return one site of each of the modules that ran last before a line was first reached."""
    reached = next((i for i, other in enumerate(ran) if other.location == site.location), 0)
    last = {other.module: other for other in reversed(ran[:reached]) if other.module}
    return list(last.values())[:FEEDING]
