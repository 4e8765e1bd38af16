"""The sections of a report, or of a comparison, on a terminal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampcheck.renderers.drawing import cells, fitted, module_name, with_room
from ampcheck.renderers.layout import Parts, fixed, hanging, indented, text, title
from ampcheck.renderers.terminal_table import lines_of
from ampcheck.renderers.view import (
    Block,
    Code,
    Facts,
    Findings,
    Item,
    Items,
    Picture,
    Section,
    Table,
    Tone,
    cut,
)
from ampcheck.renderers.words import corrected, figures, operation
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.wording import clean, indented_line, location

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: Rows of a table and lines of a list that are shown, where details were not asked for.
LIMITS = {
    "findings": 12,
    "suppressed": 12,
    "layers": 20,
    "dtypes": 20,
    "casts": 5,
    "loop": 6,
    "structure": 20,
    "moves": 20,
}
#: Columns for one fact about the environment.
FACT = 40

_SEVERITY_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold blue"}
_MARKS = {
    Tone.PLAIN: ("·", "dim"),
    Tone.GOOD: ("+", "green"),
    Tone.UNSURE: ("!", "bold yellow"),
    Tone.BAD: ("x", "red"),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """How much of a section is shown."""

    width: int
    details: bool = False  #: leave nothing out
    whole: bool = False  #: lines to paste are shown too
    draw: Callable[[Picture], list["Text"]] = lambda _: []

    def limit(self, key: str) -> int | None:
        """Return how many rows of a section are shown, None for all."""
        return None if self.details else LIMITS.get(key)


def section_parts(section: Section, fit: Fit) -> Parts:
    """Yield a section under its title; one whose pictures show nothing is left out."""
    blocks = [list(_block(fit, section, block)) for block in section.blocks]
    if any(blocks) or not section.blocks:
        yield from title(section.title, section.about)
    for block in blocks:
        yield from block


def _block(fit: Fit, section: Section, block: Block) -> Parts:
    if isinstance(block, str):
        yield indented(text((block, "dim")), 2)
    elif isinstance(block, Findings):
        findings, rest = cut(block.findings, fit.limit("findings"), "finding")
        for finding in findings:
            yield from _finding(finding, fit.width)
        yield from _rest(rest)
    elif isinstance(block, Table):
        table, rest = block.cut(fit.limit(section.key))
        yield from fixed(lines_of(table, fit.width - 2))
        yield from _rest(rest)
    elif isinstance(block, Items):
        items, rest = cut(block.items, fit.limit(section.key), "line")
        yield from map(_item, items)
        yield from _rest(rest)
    elif isinstance(block, Facts):
        yield from _facts(block)
    elif isinstance(block, Code):
        yield from _code(block, whole=fit.details or fit.whole)
    elif isinstance(block, Picture):
        yield from fixed(fit.draw(block))


def _item(item: Item) -> "RenderableType":
    words = text((f"{clean(item.lead)} " if item.lead else "", "bold"), clean(item.words))
    words.append(f"\n{clean(item.below)}" if item.below else "", "dim")
    return hanging(text(_MARKS[item.tone]), words, 2)


def _facts(block: Facts) -> Parts:
    labels = [fitted(clean(fact.label), FACT) for fact in block.facts]
    width = max(map(cells, labels))
    for label, fact in zip(labels, block.facts, strict=True):
        values = text((", ".join(map(clean, fact.values)), "bold"))
        yield hanging(text((label + " " * (width - cells(label)), "dim")), values, 2)


def _rest(words: str) -> Parts:
    if words:
        yield text((f"  {words}", "dim"))


def _finding(finding: Finding, width: int) -> Parts:
    style = _SEVERITY_STYLES[finding.severity]
    origin = finding.origin
    head = text((f"{finding.severity}[{clean(finding.code)}]", style), " ", (clean(finding.name), "bold"))
    at = location(origin.file, origin.line) if origin else ""
    if at:
        head.append(" " * 2)
        head.append(fitted(at, max(width - head.cell_len - 2, 20)), "cyan")
    yield from fixed([head])
    yield indented(text(clean(finding.message)), 4)
    for follower in finding.follows:
        yield hanging(text(("    └", "dim")), text((clean(follower), "dim")), 2)
    where = [fitted(part, FACT) for part in operation(finding)]
    module = [module_name(origin.module, FACT)] if origin and where else []
    shown = [*module, *where, *figures(finding)]
    if shown:
        yield indented(text((" · ".join(shown), "dim")), 4)
    for line in (part for whole in corrected(finding) for part in with_room(whole, width - 8)):
        yield indented(text((line, "green")), 8)


def _code(code: Code, *, whole: bool) -> Parts:
    """Yield a diff as it is; what is only to be pasted would fill the screen, so it is said where to get it."""
    if not code.diff and not whole:
        yield hanging(text(("·", "dim")), text("the lines to paste: --save-patch FILE"), 2)
        return
    yield ""
    for line in code.text.splitlines():
        words = text(indented_line(line))
        if code.diff:
            words.stylize({"+": "green", "-": "red"}.get(line[:1], "dim"))
        yield indented(words, 2) if line else ""
    yield ""
