"""What is different from a baseline, for a terminal: the difference, and the command that accepts it."""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from ampcheck.compare.differences import Change, Difference, Kind
from ampcheck.renderers.drawing import fitted, module_name
from ampcheck.renderers.layout import Parts, drawn, hanging, nothing_drawn, text, title
from ampcheck.values.trace import Phase
from ampcheck.values.wording import ROOT, clean, count, plural

if TYPE_CHECKING:
    from rich.console import RenderableType

MARKS = {Change.WORSE: ("+", "red"), Change.BETTER: ("-", "green"), Change.OTHER: ("~", "yellow")}
#: Of the ranges that moved; everything else is shown.
RANGES = 20
_NAME = 50


@nothing_drawn
def gap(differences: Sequence[Difference], command: str, *, width: int = 100, color: bool = False) -> str:
    """Return the differences from a baseline as text, with the command that would accept them."""
    lines = drawn(_gap(differences), width, color=color)
    # A command is copied, so it is never wrapped.
    reason = " --reason '…'" if _only_reasons(differences) else ""
    return f"\n{lines}    {command}{reason}\n"


def _only_reasons(differences: Sequence[Difference]) -> bool:
    return all(difference.kind is Kind.REASON for difference in differences)


def _gap(differences: Sequence[Difference]) -> Parts:
    yield from title("Baseline", f"{plural(len(differences), 'difference')} from what was accepted")
    ranges = [difference for difference in differences if difference.kind is Kind.RANGE]
    hidden = set(map(id, sorted(ranges, key=lambda difference: -abs(difference.octaves))[RANGES:]))
    for difference in differences:
        if id(difference) not in hidden:
            yield line(difference)
    if hidden:
        yield text((f"  … and {count(len(hidden))} more layers moved", "dim"))
    if any(difference.kind is Kind.FINDING and not difference.after for difference in differences):
        yield text(("    a finding that is gone is a stale entry of the baseline", "dim"))
    if _only_reasons(differences):
        yield hanging(
            text(("→", "bold")), text('write each "reason" into the baseline, or give one for all:'), 2
        )
    else:
        yield hanging(text(("→", "bold")), text("if this is meant, accept it and commit the file:"), 2)


def line(difference: Difference) -> "RenderableType":
    """Return a difference in one line."""
    mark, style = MARKS[difference.change]
    return hanging(text((mark, style)), text(sentence(difference)), 2)


def sentence(difference: Difference) -> str:
    """Return a difference as a sentence."""
    what = clean(difference.what) or ROOT
    before, after = clean(difference.before), clean(difference.after)
    if difference.kind in (Kind.FINDING, Kind.REASON):
        return _finding(difference, before, after)
    if difference.kind is Kind.LAYER:
        return f"layer {what} is {'new' if after else 'gone'}"
    if difference.kind is Kind.RANGE:
        name = "forward" if difference.phase is Phase.FORWARD else "gradients"
        moved = f"moved by {difference.octaves:+.1f} octaves" if isfinite(difference.octaves) else "changed"
        return f"{module_name(difference.what, _NAME)}: {name} {moved}: {before} → {after}"
    if difference.kind is Kind.DTYPE:
        return f"{module_name(difference.what, _NAME)}: runs in {after}, not in {before}"
    if difference.kind is Kind.TRIED:
        return f"the {what} was {before} before and is {after} now; audit it in the same way"
    return f"{'plan: ' if difference.kind is Kind.PLAN else ''}{what}: {before} → {after}"


def place_words(module: str, op: str) -> str:
    """Return where a finding is, short enough for a line."""
    return " · ".join(part for part in (module_name(module, _NAME), fitted(clean(op), _NAME)) if part)


def _finding(difference: Difference, before: str, after: str) -> str:
    _, module, op = difference.key
    what = f"{fitted(clean(difference.what), _NAME)} at {place_words(module, op)}"
    if difference.kind is Kind.REASON:
        return f"{what} is accepted without a reason"
    if not before:
        return f"{what} is new ({after})"
    return f"{what} went from {before} to {after}" if after else f"{what} is gone ({before})"
