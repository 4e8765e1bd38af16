"""Two benches of one target, the new one beside the old one: ratios only, as machines differ."""

from collections.abc import Iterator
from dataclasses import dataclass

from ampcheck.bench.result import BASE, Bench, Case, Row
from ampcheck.bench.verdicts import judgement, speed

#: Ratios of memory are exact, so that even a small change is one.
MEMORY_CHANGE = 0.02


@dataclass(frozen=True, slots=True)
class Change:
    """One figure then and now, and what that means: better, worse or the same."""

    what: str
    before: str
    now: str
    word: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the columns in order."""
        return (self.what, self.before, self.now, self.word)


def compare(old: Bench, new: Bench) -> tuple[Change, ...]:
    """Return what became of every row that both have; FP32's own ratios are one."""
    before = {(case.key, row.precision): (case, row) for case in old.cases for row in case.rows}
    found: list[Change] = []
    for case in new.cases:
        for row in case.rows:
            known = before.get((case.key, row.precision))
            if known is not None and row.precision != BASE:
                found += _changes(f"{case.key}: {row.precision}", (old, *known), (new, case, row))
    return tuple(found)


def _changes(name: str, old: tuple[Bench, Case, Row], new: tuple[Bench, Case, Row]) -> Iterator[Change]:
    fast, faster = speed(*old[1:]), speed(*new[1:])
    if fast is not None and faster is not None:
        a, b = fast.interval, faster.interval
        word = "faster" if b.low > a.high else "slower" if b.high < a.low else "same"
        yield Change(
            f"{name}, × as fast",
            f"{a.estimate:.2f} [{a.low:.2f}, {a.high:.2f}]",
            f"{b.estimate:.2f} [{b.low:.2f}, {b.high:.2f}]",
            word,
        )
    less, lesser = old[1].memory_ratio(old[2]), new[1].memory_ratio(new[2])
    if less is not None and lesser is not None:
        apart = lesser - less
        word = "same" if abs(apart) <= MEMORY_CHANGE else "more memory" if apart > 0 else "less memory"
        yield Change(f"{name}, × memory", f"{less:.2f}", f"{lesser:.2f}", word)
    said, says = judgement(*old), judgement(*new)
    if said is not None and says is not None:
        yield Change(
            f"{name}, trained", said.word, says.word, "same" if said.word == says.word else "changed"
        )
