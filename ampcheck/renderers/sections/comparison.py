"""What became of a report: the words and sections that terminal and Markdown share."""

from collections.abc import Iterator

from ampcheck.compare.comparison import SHOWN, Comparison, Shift
from ampcheck.compare.differences import Change, Difference, Kind
from ampcheck.renderers.differences import sentence
from ampcheck.renderers.drawing import NONE
from ampcheck.renderers.view import Column, Item, Items, Section, Table, Tone
from ampcheck.renderers.view import Kind as Cell
from ampcheck.values.report import Report
from ampcheck.values.wording import ROOT, clean, count, plural, power

TONES = {Change.WORSE: Tone.BAD, Change.BETTER: Tone.GOOD, Change.OTHER: Tone.PLAIN}
_MOVES = (
    Column("layer", Cell.MODULE),
    *(
        column
        for phase in ("forward", "gradients")
        for column in (
            Column(f"{phase} 2^…"),
            Column(f"{phase} moved", Cell.NUMBER),
            Column(f"{phase} top", Cell.NUMBER, spare=1),
        )
    ),
)


def facts(comparison: Comparison) -> list[str]:
    """Return what was audited: target, precision and loss scale, both where it is not the same."""
    old, new = comparison.old, comparison.new
    pairs = (
        (clean(old.target), clean(new.target)),
        (old.precision, new.precision),
        (power(old.log2_scale), power(new.log2_scale)),
    )
    target, precision, scale = (
        before if before == after else f"{before} → {after}" for before, after in pairs
    )
    return [target, precision, f"loss scale {scale}"]


def summary(comparison: Comparison) -> str:
    """Return in one line what changed."""
    shown = []
    for change, words in ((Change.WORSE, "worse"), (Change.BETTER, "better")):
        number = sum(difference.change is change for difference in comparison.differences)
        shown += [f"{count(number)} {words}"] if number else []
    moved, layers = len(comparison.moves), plural(comparison.compared, "layer")
    far = f", the farthest by {comparison.moves[0].octaves:+.1f} octaves" if moved else ""
    shown.append(f"{count(moved)} of {layers} moved{far}" if moved else f"none of {layers} moved")
    return " · ".join(shown)


def outcome(comparison: Comparison) -> str:
    """Return in one word what became of it."""
    if comparison.worse:
        return "worse"
    if any(difference.change is Change.BETTER for difference in comparison.differences):
        return "better"
    return "changed" if comparison.differences or comparison.moves else "same"


def answers(comparison: Comparison) -> tuple[tuple[str, Report], ...]:
    """Return both reports, each with the word for when it was."""
    return ("before", comparison.old), ("now", comparison.new)


def sections(comparison: Comparison) -> Iterator[Section]:
    """Yield the findings, the settings and the layers that changed."""
    changed = [one for one in comparison.differences if one.kind is Kind.FINDING]
    same = len(comparison.new.findings) - sum(len(comparison.findings(one)) for one in changed if one.after)
    yield from _listed(
        comparison, "findings", "Findings", f"{count(same)} as before" if same else "", Kind.FINDING
    )
    yield from _listed(comparison, "settings", "Plan and scale", "", Kind.PLAN, Kind.SCALE, Kind.TRIED)
    about = "layers that are new or gone, or run in another dtype"
    yield from _listed(comparison, "structure", "Structure", about, Kind.DTYPE, Kind.LAYER)
    rows = [(one.module or ROOT, *_cells(one.forward), *_cells(one.backward)) for one in comparison.moves]
    about = f"whose typical or largest magnitude moved by {SHOWN} octaves or more"
    if rows:
        yield Section("moves", "Layers", about, (Table("layer", _MOVES, rows),))


def _listed(comparison: Comparison, key: str, title: str, about: str, *kinds: Kind) -> Iterator[Section]:
    items = [_item(comparison, one) for one in comparison.differences if one.kind in kinds]
    if items:
        yield Section(key, title, about, (Items(items),))


def _item(comparison: Comparison, difference: Difference) -> Item:
    found = comparison.findings(difference)[:1] if difference.kind is Kind.FINDING else ()
    below = found[0].message if found else ""
    lead = "" if difference.change is Change.OTHER else f"{difference.change}:"
    return Item(sentence(difference), lead, TONES[difference.change], below)


def _cells(shift: Shift) -> tuple[str, str, str]:
    return pair(shift), signed(shift.typical), signed(shift.top)


def pair(shift: Shift) -> str:
    """Return the typical magnitudes before and now."""
    before, after = (
        NONE if side is None else f"{round(side.typical, 1) + 0:.1f}" for side in (shift.before, shift.after)
    )
    return "" if before == after == NONE else f"{before} → {after}"


def signed(octaves: float) -> str:
    """Return a move with its sign; nothing for one that rounds to nothing."""
    return "" if abs(octaves) < 0.05 else f"{octaves:+.1f}"  # noqa: PLR2004 - what one decimal shows
