"""Two benches of one target, the new one beside the old one: ratios only, as machines differ."""

from collections.abc import Iterator
from dataclasses import dataclass

from ampcheck.bench.result import BASE, Bench, Case, Row
from ampcheck.bench.verdicts import judgement, speed
from ampcheck.errors import AmpcheckError

#: Ratios of memory are exact, so that even a small change is one.
MEMORY_CHANGE = 0.02
#: Words of a change that let `--compare` fail: a figure that got worse, or that is not there any more.
WORSE = frozenset({"slower", "more memory", "worse", "missing"})
#: What training came to, from the worst on.
_ORDER = ("fails", "stuck", "worse", "undecided", "equivalent", "better")
_MISSING = "missing"


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

    @property
    def failed(self) -> str | None:
        """Return what a gate says about it; None where nothing got worse."""
        if self.word == _MISSING:
            return f"{self.what} was {self.before} and is missing now"
        return f"{self.what} was {self.before} and is {self.now} now" if self.word in WORSE else None


def check(old: Bench, target: str) -> None:
    """Refuse to compare benches of two targets."""
    if old.target != target:
        raise AmpcheckError(
            f"cannot compare a bench of {target} with one of {old.target}: name the same target"
        )


def compare(old: Bench, new: Bench) -> tuple[Change, ...]:
    """Return what became of every row that the old bench has; FP32's own ratios are one."""
    check(old, new.target)
    now = {(case.key, row.precision): (case, row) for case in new.cases for row in case.rows}
    found = list(_conditions(old, new))
    for case in old.cases:
        for row in case.rows:
            name, there = f"{case.key}: {row.precision}", now.get((case.key, row.precision))
            if there is None:
                found.append(Change(name, "measured", _MISSING, _MISSING))
            elif row.precision != BASE:
                found += _changes(name, (old, case, row), (new, *there))
    return tuple(found)


def _conditions(old: Bench, new: Bench) -> Iterator[Change]:
    """Yield what was run under other conditions, so that figures cannot be compared."""
    before, now = (bench.environment.get("device", "CPU") for bench in (old, new))
    if before != now:
        yield Change("the device", before, now, "worse")
    for name, setting in old.settings.items():
        if name in new.settings and new.settings[name] != setting:
            yield Change(f"the setting {name}", setting, new.settings[name], "worse")


def _changes(name: str, old: tuple[Bench, Case, Row], new: tuple[Bench, Case, Row]) -> Iterator[Change]:
    if old[2].status == "ok" != new[2].status:
        yield Change(f"{name}, status", "ok", new[2].status, "worse")
    fast, faster = speed(*old[1:]), speed(*new[1:])
    if fast is not None:
        a = fast.interval
        before = f"{a.estimate:.2f} [{a.low:.2f}, {a.high:.2f}]"
        if faster is None:
            yield Change(f"{name}, × as fast", before, _MISSING, _MISSING)
        else:
            b = faster.interval
            word = "faster" if b.low > a.high else "slower" if b.high < a.low else "same"
            yield Change(f"{name}, × as fast", before, f"{b.estimate:.2f} [{b.low:.2f}, {b.high:.2f}]", word)
    less, lesser = old[1].memory_ratio(old[2]), new[1].memory_ratio(new[2])
    if less is not None:
        word = _MISSING if lesser is None else _memory_word(lesser - less)
        yield Change(
            f"{name}, × memory", f"{less:.2f}", _MISSING if lesser is None else f"{lesser:.2f}", word
        )
    said, says = judgement(*old), judgement(*new)
    if said is not None:
        now = _MISSING if says is None else says.word
        yield Change(
            f"{name}, trained", said.word, now, _MISSING if says is None else _trained(said.word, now)
        )


def _memory_word(apart: float) -> str:
    return "same" if abs(apart) <= MEMORY_CHANGE else "more memory" if apart > 0 else "less memory"


def _trained(before: str, now: str) -> str:
    if before == now:
        return "same"
    return "worse" if _ORDER.index(now) < _ORDER.index(before) else "improved"
