"""Two benches of one target, the new one beside the old one: ratios only, as machines differ."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ampcheck.bench.intervals import Interval
from ampcheck.bench.result import BASE, Bench, Case, Row
from ampcheck.bench.verdicts import NOT_JUDGED, judgement, seen, speed
from ampcheck.errors import AmpcheckError
from ampcheck.values.wording import percent

#: Ratios of memory are exact, so that even a small change is one.
MEMORY_CHANGE = 0.02
#: An error this many times as large has lost a bit.
ERROR_CHANGE = 2
#: An error below this is shown as next to nothing, and a change of it is none.
SMALL_ERROR = 1e-4
#: Words of a change that let `--compare` fail: a figure that got worse, or that is not there any more.
WORSE = frozenset({"slower", "more memory", "worse", "missing", "not comparable"})
#: What training came to, from the worst on.
_ORDER = ("fails", "stuck", "worse", "undecided", NOT_JUDGED, "equivalent", "better")
_MISSING = "missing"
_Found: TypeAlias = tuple[Bench, Case, Row]
#: Returns a figure of a row: how it is shown, and what is compared; None where it was not measured.
_Figure: TypeAlias = Callable[[Bench, Case, Row], tuple[str, Any] | None]


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
        return f"{self.what} was {self.before} and is {self.now} now" if self.word in WORSE else None


def check(old: Bench, target: str) -> None:
    """Refuse to compare benches of two targets."""
    if old.target != target:
        words = f"cannot compare a bench of {target} with one of {old.target}: name the same target"
        raise AmpcheckError(words)


def compare(old: Bench, new: Bench) -> tuple[Change, ...]:
    """Return what became of every row that the old bench has; FP32's own ratios are one."""
    check(old, new.target)
    now = {(case.key, row.precision): (case, row) for case in new.cases for row in case.rows}
    found: list[Change] = []
    for case in old.cases:
        for row in case.rows:
            name, there = f"{case.key}: {row.precision}", now.get((case.key, row.precision))
            if there is None:
                found.append(Change(name, "measured", _MISSING, _MISSING))
            else:
                found += _changes(name, (old, case, row), (new, *there))
    if not found:
        found.append(Change("a figure to compare", "asked for", _MISSING, _MISSING))
    return (*_conditions(old, new), *found)


def _conditions(old: Bench, new: Bench) -> Iterator[Change]:
    """Yield what was run under other conditions, or under unknown ones, so that figures cannot be compared."""
    before, now = (bench.environment.get("device", "CPU") for bench in (old, new))
    if before != now:
        yield Change("the device", before, now, "worse")
    for name, setting in new.settings.items():
        if (was := old.settings.get(name, "not saved")) != setting:
            yield Change(f"the setting {name}", was, setting, "worse")


def _changes(name: str, old: _Found, new: _Found) -> Iterator[Change]:
    if old[2].status == "ok" != new[2].status:
        yield Change(f"{name}, status", "ok", new[2].status, "worse")
    if old[2].precision == BASE:
        return
    for what, figure, word in _FIGURES:
        before, now = figure(*old), figure(*new)
        if before is not None:
            shown = (_MISSING, _MISSING) if now is None else (now[0], word(before[1], now[1]))
            yield Change(f"{name}, {what}", before[0], *shown)


def _speed(_: Bench, case: Case, row: Row) -> tuple[str, Interval] | None:
    """Return the speed and its interval; updates that were skipped while it was timed took no time."""
    fast = speed(case, row)
    if fast is None or row.time is None:
        return None
    low, high = (0.0, math.inf) if row.time.skipped else (fast.interval.low, fast.interval.high)
    return f"{fast.interval.estimate:.2f} [{low:.2f}, {high:.2f}]", replace(fast.interval, low=low, high=high)


def _speed_word(before: Interval, now: Interval) -> str:
    if not 0 < min(before.low, now.low) <= max(before.high, now.high) < math.inf:
        return "not comparable"
    slower = now.high < before.low
    return "faster" if now.low > before.high else "slower" if slower else "no difference measured"


def _memory(_: Bench, case: Case, row: Row) -> tuple[str, float] | None:
    share = case.memory_ratio(row)
    return None if share is None else (f"{share:.2f}", share)


def _memory_word(before: float, now: float) -> str:
    apart = now - before
    return "same" if abs(apart) <= MEMORY_CHANGE else "more memory" if apart > 0 else "less memory"


def _error(_: Bench, __: Case, row: Row) -> tuple[str, float] | None:
    """Return the error of one step: of the gradients, and in inference of the outputs."""
    what, error = seen(row)
    if error is None:
        return None
    return (
        f"{what}s {percent(error.relative_rms)}" if error.finite else f"{what}s not finite",
        error.relative_rms,
    )


def _error_word(before: float, now: float) -> str:
    if not math.isfinite(now):
        return "same" if not math.isfinite(before) else "worse"
    if not math.isfinite(before):
        return "improved"
    before, now = max(before, SMALL_ERROR), max(now, SMALL_ERROR)
    return "worse" if now > ERROR_CHANGE * before else "improved" if before > ERROR_CHANGE * now else "same"


def _trained(bench: Bench, case: Case, row: Row) -> tuple[str, str] | None:
    found = judgement(bench, case, row)
    return None if found is None else (found.word, found.word)


def _trained_word(before: str, now: str) -> str:
    if before == now:
        return "same"
    return "worse" if _ORDER.index(now) < _ORDER.index(before) else "improved"


_FIGURES: tuple[tuple[str, _Figure, Callable[[Any, Any], str]], ...] = (
    ("× as fast", _speed, _speed_word),
    ("× memory", _memory, _memory_word),
    ("error", _error, _error_word),
    ("trained", _trained, _trained_word),
)
