"""Two reports of the same model side by side: what got worse, what got better, which layers moved how far."""

from dataclasses import dataclass

from ampcheck.compare.baseline import Span, accept, place
from ampcheck.compare.differences import Change, Difference, Kind, between
from ampcheck.values.findings import Finding
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health

#: Octaves from which on a move is shown to people; half an octave is what the eye finds in a histogram.
SHOWN = 0.5
_HEALTHS = list(Health)


@dataclass(frozen=True, slots=True)
class Shift:
    """Where the numbers of a layer lay in one phase, and where they lie now."""

    before: Span | None
    after: Span | None

    @property
    def typical(self) -> float:
        """Return the octaves that the median moved; 0.0 where there is nothing to compare."""
        return self.after.typical - self.before.typical if self.before and self.after else 0.0

    @property
    def top(self) -> float:
        """Return the octaves that the largest magnitude moved."""
        return self.after.top - self.before.top if self.before and self.after else 0.0

    @property
    def octaves(self) -> float:
        """Return the larger of both moves."""
        return max(self.typical, self.top, key=abs)


@dataclass(frozen=True, slots=True)
class Move:
    """A layer whose numbers moved."""

    module: str
    forward: Shift
    backward: Shift

    @property
    def octaves(self) -> float:
        """Return the largest of its moves."""
        return max(self.forward.octaves, self.backward.octaves, key=abs)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of a report."""

    old: Report
    new: Report
    differences: tuple[Difference, ...]  #: ranges left out, what is worse first
    moves: tuple[Move, ...]  #: the farthest first
    compared: int  #: layers that both have

    @property
    def worse(self) -> bool:
        """Tell whether anything got worse: the answer, a finding, or what has to stay in FP32."""
        return self.fell or any(difference.change is Change.WORSE for difference in self.differences)

    @property
    def fell(self) -> bool:
        """Tell whether the answer is a worse one; where nothing can be said, it is not."""
        before, after = (_HEALTHS.index(report.verdict.word) for report in (self.old, self.new))
        return before < after < _HEALTHS.index(Health.UNKNOWN)

    def findings(self, difference: Difference) -> tuple[Finding, ...]:
        """Return the findings behind a difference, the new ones, or the old ones where they went."""
        report = self.new if difference.after else self.old
        return tuple(
            finding for finding in report.findings if place(finding) == difference.key and difference.key[0]
        )


def compare_reports(old: Report, new: Report) -> Comparison:
    """Return what became of a report."""
    before, after = accept(old, reason="old"), accept(new, reason="new")
    order = list(Change)
    found = [difference for difference in between(before, after) if difference.kind is not Kind.RANGE]
    both = [module for module in before.layers if module in after.layers]
    sides = ((module, before.layers[module], after.layers[module]) for module in both)
    moves = [Move(name, Shift(a.forward, b.forward), Shift(a.backward, b.backward)) for name, a, b in sides]
    moves = sorted((one for one in moves if abs(one.octaves) >= SHOWN), key=lambda one: -abs(one.octaves))
    found.sort(key=lambda difference: order.index(difference.change))
    return Comparison(old, new, tuple(found), tuple(moves), len(both))
