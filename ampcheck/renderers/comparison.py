"""What became of a report, for a terminal: the answers, the findings, the plan, and the layers that moved."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ampcheck.compare.comparison import SHOWN, Comparison, Move, Shift
from ampcheck.compare.differences import MOVED, Change, Difference, Kind
from ampcheck.renderers.differences import line
from ampcheck.renderers.drawing import NONE, cells, fitted, module_name
from ampcheck.renderers.layout import Parts, drawn, fixed, hanging, indented, nothing_drawn, text, title
from ampcheck.values.verdict import Health
from ampcheck.values.wording import clean, count, plural, power

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST = 60
LAYERS = 20
#: Cells on either side of the line from which a move is drawn.
_ARM = 5
_NAME = 34
_OUTCOMES = {"worse": "red", "better": "green", "changed": "yellow", "same": "green"}
_STYLES = dict.fromkeys(Health, "yellow") | {Health.SAFE: "green", Health.UNSAFE: "red"}


@nothing_drawn
def render(comparison: Comparison, *, width: int = 100, color: bool = False) -> str:
    """Return what became of a report as lines no longer than a width."""
    wide = max(width, NARROWEST)
    sections = (_answers, _findings, _settings, _dtypes)
    parts = [part for section in sections for part in section(comparison)]
    return drawn([_header(comparison, wide), "", *parts, *_layers(comparison, wide)], wide, color=color)


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


def _header(comparison: Comparison, width: int) -> "Text":
    target, *others = facts(comparison)
    tail = "".join(f" · {fact}" for fact in others)
    head = "ampcheck diff "
    return text((head, "dim"), (fitted(target, width - cells(head + tail)), "bold"), (tail, "dim"))


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


def _answers(comparison: Comparison) -> Parts:
    word = outcome(comparison)
    badge = text((f" {word.upper()} ", f"bold {_OUTCOMES[word]} reverse"))
    yield hanging(badge, text((summary(comparison), "bold")))
    for when, report in (("before", comparison.old), ("now", comparison.new)):
        health, sentence = report.verdict.word, report.verdict.sentence
        words = text(f"{when:<6} ", (f"{health.upper():<7}", _STYLES[health]))
        yield hanging(words, text(sentence), 2)


def _of(comparison: Comparison, *kinds: Kind) -> Sequence[Difference]:
    return [difference for difference in comparison.differences if difference.kind in kinds]


def _findings(comparison: Comparison) -> Parts:
    changed = _of(comparison, Kind.FINDING)
    if not changed:
        return
    same = len(comparison.new.findings) - sum(len(comparison.findings(one)) for one in changed if one.after)
    yield from title("Findings", f"{count(same)} as before" if same else "")
    for difference in changed:
        yield line(difference)
        for finding in comparison.findings(difference)[:1]:
            yield indented(text((clean(finding.message), "dim")), 4)


def _settings(comparison: Comparison) -> Parts:
    changed = _of(comparison, Kind.PLAN, Kind.SCALE, Kind.TRIED)
    if changed:
        yield from title("Plan and scale")
        yield from map(line, changed)


def _dtypes(comparison: Comparison) -> Parts:
    changed = _of(comparison, Kind.DTYPE, Kind.LAYER)
    if not changed:
        return
    yield from title("Structure", "layers that are new or gone, or run in another dtype")
    yield from map(line, changed[:LAYERS])
    if len(changed) > LAYERS:
        yield text((f"  … and {count(len(changed) - LAYERS)} more", "dim"))


def _layers(comparison: Comparison, width: int) -> Parts:
    moves = comparison.moves[:LAYERS]
    if not moves:
        return
    yield from title("Layers", f"whose typical or largest magnitude moved by {SHOWN} octaves or more")
    yield from fixed(_table(moves, width - 2))
    rest = len(comparison.moves) - len(moves)
    if rest:
        yield text((f"  … and {plural(rest, 'more layer')}", "dim"))


def _table(moves: Sequence[Move], width: int) -> list["Text"]:
    """Return two lines of titles and a line for each layer: typical magnitudes, their move, that of the top."""
    most = max(abs(shift.typical) for move in moves for shift in (move.forward, move.backward))
    values = [[pair(shift) for shift in (move.forward, move.backward)] for move in moves]
    wide = max(cells(value) for row in values for value in row)
    phase = wide + 2 + 2 * _ARM + 1 + 2 + 5
    arms = _ARM if width - 2 * (phase + 3) >= len("module") + 14 else 0
    phase -= 0 if arms else 2 * _ARM + 3
    longest = max(cells(module_name(move.module, width)) for move in moves)
    names = max(min(longest, _NAME, width - 2 * (phase + 3)), len("module"))
    moved = f"  {'moved':^{2 * _ARM + 1}}" if arms else ""
    titles = f"{'typical, 2^…':<{wide}}{moved}    top"
    lines = [
        text((f"{'':<{names}}   {'forward':<{phase}}   gradients", "dim")),
        text((f"{'module':<{names}}   {titles}   {titles}", "dim")),
    ]
    for move, row in zip(moves, values, strict=True):
        name = module_name(move.module, names)
        parts = text(name + " " * (names - cells(name)))
        for shift, value in zip((move.forward, move.backward), row, strict=True):
            style = "yellow" if abs(shift.octaves) > MOVED else ""
            arm = f"  {arrow(shift.typical, most)}" if arms else ""
            parts.append(f"   {value:>{wide}}", style if abs(shift.typical) >= SHOWN else "dim")
            parts.append(arm, style)
            parts.append(f"  {signed(shift.top):>5}", style if abs(shift.top) >= SHOWN else "dim")
        lines.append(parts)
    return lines


def pair(shift: Shift) -> str:
    """Return the typical magnitudes before and now.

    >>> pair(Shift(Span(0, 1, 2), Span(0, 3.5, 4)))
    '1.0 →   3.5'
    """
    before, after = (
        NONE if side is None else f"{round(side.typical, 1) + 0:.1f}" for side in (shift.before, shift.after)
    )
    return NONE if before == after == NONE else f"{before} → {after:>5}"


def signed(octaves: float) -> str:
    """Return a move with its sign; one that rounds to nothing as such."""
    return NONE if abs(octaves) < 0.05 else f"{octaves:+.1f}"  # noqa: PLR2004 - what one decimal shows


def arrow(octaves: float, most: float) -> str:
    """Return a move as an arrow from a line in the middle; the farthest takes the whole arm.

    >>> arrow(4, 4), arrow(-1.6, 4), arrow(0, 4)
    ('     │━━━━▸', '   ◂━│     ', '     │     ')
    """
    length = round(_ARM * abs(octaves) / most) if most else 0
    shaft = "━" * (length - 1)
    left = f"◂{shaft}" if length and octaves < 0 else ""
    right = f"{shaft}▸" if length and octaves > 0 else ""
    return f"{left:>{_ARM}}│{right:<{_ARM}}"
