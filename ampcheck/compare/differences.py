"""What is different from a baseline, for better or for worse: values, no sentences."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from ampcheck.compare.baseline import Accepted, Baseline, Planned, Span, accept, worse
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase

#: Octaves that a layer's typical magnitude may move unnoticed. The same audit on another machine moves it by
#: rounding alone, a hundredth; another seed moved it by up to 0.9 in five models. A factor of two is what a
#: change of the code does, and far less than the headroom of a healthy layer.
MOVED = 1.0
#: The same for its largest magnitude, one element: other seeds moved it by up to 1.9.
MOVED_TOP = 2.0
# The lower end is kept for people only: the smallest hundredth of the elements moved by up to ten.
#: Where the loss scale settles is a power of two, and the last one that overflows is a matter of rounding.
SCALE_MOVED = 1.0


class Change(StrEnum):
    """Which way something went."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"  #: neither is known to be better


class Kind(StrEnum):
    """What a difference is about."""

    FINDING = "finding"
    REASON = "reason"  #: a finding is accepted without one
    PLAN = "plan"
    SCALE = "scale"  #: the loss scale that was settled on
    TRIED = "tried"  #: one was run again to try what is claimed and the other was not
    LAYER = "layer"
    DTYPE = "dtype"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was."""

    kind: Kind
    change: Change
    what: str  #: the layer, or the part of the plan, or the code and name of the finding
    before: str = ""  #: '' where it was not there
    after: str = ""  #: '' where it is there no longer
    key: tuple[str, str, str] = ("", "", "")  #: of a finding: code, module, operation
    phase: Phase | None = None  #: of a range
    octaves: float = 0.0  #: that the range moved, up or down, at the end that moved most


def compare(report: Report, baseline: Baseline) -> tuple[Difference, ...]:
    """Return what is different in a report, what is worse first."""
    found = list(between(baseline, accept(report, baseline)))
    order = list(Change)
    return tuple(sorted(found, key=lambda difference: order.index(difference.change)))


def between(old: Baseline, new: Baseline) -> Iterator[Difference]:
    """Yield what is different between two baselines."""
    if old.tried != new.tried:
        states = {True: "run again", False: "only recorded"}
        yield Difference(Kind.TRIED, Change.OTHER, "step", states[old.tried], states[new.tried])
    yield from _findings(old, new)
    if old.tried == new.tried:
        yield from _plan(old.plan or Planned(), new.plan or Planned())
    if abs(new.log2_scale - old.log2_scale) > SCALE_MOVED:
        yield Difference(Kind.SCALE, Change.OTHER, "loss scale", f"2^{old.log2_scale}", f"2^{new.log2_scale}")
    yield from _layers(old, new)


def _findings(old: Baseline, new: Baseline) -> Iterator[Difference]:
    before = {accepted.key: accepted for accepted in old.findings}
    after = {accepted.key: accepted for accepted in new.findings}
    for key in dict.fromkeys([*before, *after]):
        yield from _finding(before.get(key), after.get(key))


def _finding(before: Accepted | None, after: Accepted | None) -> Iterator[Difference]:
    one = after or before
    assert one is not None
    what, states = f"{one.code} {one.name}", (_counted(before), _counted(after))
    if before is None or after is None:
        grew = before is None
    elif before.severity != after.severity:
        grew = worse(after.severity, before.severity)
    else:
        grew = after.count > before.count
    if states[0] != states[1]:
        yield Difference(Kind.FINDING, Change.WORSE if grew else Change.BETTER, what, *states, one.key)
    elif not one.reason:
        yield Difference(Kind.REASON, Change.WORSE, what, *states, one.key)


def _counted(accepted: Accepted | None) -> str:
    if accepted is None:
        return ""
    return str(accepted.severity) if accepted.count == 1 else f"{accepted.count} × {accepted.severity}"


def _plan(old: Planned, new: Planned) -> Iterator[Difference]:
    if old.precision != new.precision:
        yield Difference(
            Kind.PLAN, Change.OTHER, "precision", old.precision or "none", new.precision or "none"
        )
    if old.way != new.way:
        yield Difference(Kind.PLAN, Change.OTHER, "way", old.way or "none", new.way or "none")
    for what, before, after in (
        ("modules in bf16", Counter(old.bf16_modules), Counter(new.bf16_modules)),
        ("modules in FP32", Counter(old.fp32_modules), Counter(new.fp32_modules)),
        ("lines in FP32", Counter(old.fp32_files), Counter(new.fp32_files)),
    ):
        if before != after:
            change = Change.WORSE if after > before else Change.BETTER if after < before else Change.OTHER
            yield Difference(Kind.PLAN, change, what, _listed(before), _listed(after))
    scales = (old.log2_init_scale, new.log2_init_scale)
    if _apart(*scales) > SCALE_MOVED:
        first, now = ("none" if scale is None else f"2^{scale:g}" for scale in scales)
        yield Difference(Kind.PLAN, Change.OTHER, "first loss scale", first, now)


def _listed(names: Counter[str]) -> str:
    return ", ".join(sorted(names.elements())) or "none"


def _apart(a: float | None, b: float | None) -> float:
    """Return how far apart two powers of two are; where only one is there, infinitely."""
    if a is None or b is None:
        return 0.0 if a is b else inf
    return abs(a - b)


def _layers(old: Baseline, new: Baseline) -> Iterator[Difference]:
    # A step that raises records nothing in low precision, and its finding says so.
    recorded = all(any(layer.dtypes for layer in side.layers.values()) for side in (old, new))
    for module in dict.fromkeys([*old.layers, *new.layers]):
        before, after = old.layers.get(module), new.layers.get(module)
        if before is None or after is None:
            states = ("" if before is None else "there", "" if after is None else "there")
            yield Difference(Kind.LAYER, Change.OTHER, module, *states)
            continue
        if recorded and before.dtypes != after.dtypes:
            ran, runs = ("+".join(layer.dtypes) or "none" for layer in (before, after))
            yield Difference(Kind.DTYPE, Change.OTHER, module, ran, runs)
        yield from _range(module, Phase.FORWARD, before.forward, after.forward)
        yield from _range(module, Phase.BACKWARD, before.backward, after.backward)


def _range(module: str, phase: Phase, before: Span | None, after: Span | None) -> Iterator[Difference]:
    if before is None and after is None:
        return
    octaves = _octaves(before, after)
    if octaves:
        yield Difference(
            Kind.RANGE, Change.OTHER, module, _shown(before), _shown(after), phase=phase, octaves=octaves
        )


def _octaves(before: Span | None, after: Span | None) -> float:
    """Return how far a range moved at the end that moved most, 0.0 where none moved more than it may."""
    if before is None or after is None:
        return inf if before is None else -inf
    moves = (
        (after.typical - before.typical, MOVED),
        (after.top - before.top, MOVED_TOP),
    )
    return max((move for move, limit in moves if abs(move) > limit), key=abs, default=0.0)


def _shown(span: Span | None) -> str:
    return "only zeros" if span is None else f"2^{span.low:.1f} … {span.typical:.1f} … {span.top:.1f}"
