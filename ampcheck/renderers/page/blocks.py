"""The sections of the page that are laid out as they come: tables, lists, facts and code."""

from collections.abc import Iterator, Mapping, Sequence

from ampcheck.renderers.drawing import NONE
from ampcheck.renderers.page.elements import Html, joined, shown, tag, titled, wide
from ampcheck.renderers.page.findings import finding_item
from ampcheck.renderers.page.picture import operands
from ampcheck.renderers.scale_curve import curve, spans
from ampcheck.renderers.view import (
    Block,
    Code,
    Fact,
    Facts,
    Findings,
    Item,
    Items,
    Kind,
    Picture,
    Section,
    Table,
    Tone,
)
from ampcheck.values.loop import Loop
from ampcheck.values.recipe_audit import RecipeAudit
from ampcheck.values.report import Report
from ampcheck.values.wording import ROOT, clean, count, plural

#: Rows shown at once, and those behind a line to open; further ones are counted.
_FIRST, _REST = 10, 5000
#: Names shown at once.
_NAMES = 6
_SIGNS = {Tone.PLAIN: "·", Tone.GOOD: "✓", Tone.UNSURE: "?", Tone.BAD: "✕"}


def laid_out(report: Report, section: Section, rows: Mapping[str, int]) -> Html:
    """Return a section; `rows` tells which row of the layers' table shows a module."""
    parts = [part for block in section.blocks for part in _block(report, block, section, rows)]
    return titled(section.key, section.title, section.about, parts)


def _block(report: Report, block: Block, section: Section, rows: Mapping[str, int]) -> Iterator[Html]:
    if isinstance(block, str):
        yield tag("p", block)
    elif isinstance(block, Findings):
        items = [finding_item(finding, rows) for finding in block.findings]
        yield tag("ol", items[:_FIRST], class_="findings")
        yield from _opened(len(items), "finding", tag("ol", items[_FIRST:], class_="findings"))
    elif isinstance(block, Table):
        yield from _table(block, section, rows)
    elif isinstance(block, Items):
        yield tag("ul", map(_item, block.items), class_="items")
    elif isinstance(block, Facts):
        yield tag("dl", [part for fact in block.facts for part in _fact(fact)], class_="facts-list")
    elif isinstance(block, Code):
        yield _code(block)
    elif block.name == "course" and report.loop is not None:
        yield from _courses(report.loop, block)
    elif block.name == "operands" and report.recipes is not None:
        yield from _operands(report.recipes)


def _opened(number: int, noun: str, body: Html) -> Iterator[Html]:
    """Yield what comes after the first rows behind a line to open."""
    if number > _FIRST:
        yield tag("details", tag("summary", plural(number - _FIRST, f"more {noun}")), body)


def _table(table: Table, section: Section, rows: Mapping[str, int]) -> Iterator[Html]:
    table = table.filled()
    heads = [
        tag("th", column.title, scope="col", class_="number" if column.kind is Kind.NUMBER else None)
        for column in table.columns
    ]
    kinds = [column.kind for column in table.columns]
    lines = [
        tag("tr", [_cell(text, kind, rows) for text, kind in zip(row, kinds, strict=True)])
        for row in table.rows[: _FIRST + _REST]
    ]
    left = len(table.rows) - len(lines)
    yield _drawn(heads, lines[:_FIRST], f"{section.title}: {plural(len(table.rows), table.noun)}")
    further = tag("p", f"and {count(left)} more, in the JSON report", class_="muted") if left else None
    rest = _drawn(heads, lines[_FIRST:], f"{section.title}: all other {table.noun}s")
    yield from _opened(len(table.rows), table.noun, tag("div", rest, further))


def _drawn(heads: Sequence[Html], lines: Sequence[Html], label: str) -> Html:
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", lines), class_="plain")
    return wide(table, label)


def _cell(text: str, kind: Kind, rows: Mapping[str, int]) -> Html:
    if not text:
        return tag("td", NONE, class_="number" if kind is Kind.NUMBER else None)
    if kind is Kind.MODULE:
        row = rows.get("" if text == ROOT else text)
        return tag("td", tag("a", text, href=f"#m{row}") if row is not None else text, class_="path")
    if kind is Kind.CODE:
        return tag("td", tag("code", text))
    return tag("td", text, class_="number" if kind is Kind.NUMBER else None)


def _item(item: Item) -> Html:
    words = tag("div", tag("b", item.lead, " ") if item.lead else None, item.words)
    below = tag("div", item.below, class_="muted") if item.below else None
    sign = tag("span", _SIGNS[item.tone], class_="mark", aria_hidden="true")
    tone = None if item.tone is Tone.PLAIN else f"tone-{item.tone}"
    return tag("li", sign, tag("div", words, below), class_=tone)


def _fact(fact: Fact) -> tuple[Html, Html]:
    """Return a name and its values in a row, those beyond the first few behind a line to open."""
    values = [tag("code", value) if fact.kind is Kind.CODE else shown(value) for value in fact.values]
    first, rest = joined(values[:_NAMES], ", "), values[_NAMES:]
    more = tag("details", tag("summary", f"and {count(len(rest))} more"), joined(rest, ", ")) if rest else ""
    return tag("dt", fact.label), tag("dd", first, more)


def _courses(seen: Loop, picture: Picture) -> Iterator[Html]:
    """Yield the curve of every scaler that changed its scale."""
    for label, *_ in spans(seen):
        drawn = curve(seen, label, class_="course")
        if drawn is not None:
            yield tag("figure", tag("figcaption", f"{clean(label)}: {picture.about}"), drawn)


def _operands(audit: RecipeAudit) -> Iterator[Html]:
    """Yield what each recipe's formats made of the operands."""
    for result in audit.results:
        drawn = list(operands(result))
        if drawn:
            name = tag("summary", f"Operands of {result.outcome.recipe}, as its formats were given them")
            yield tag("details", name, drawn, open=len(audit.results) == 1)


def _code(code: Code) -> Html:
    lines = [_line(line, diff=code.diff) for line in code.text.splitlines()]
    button = tag("button", "Copy", type="button", class_="scripted", id="copy")
    head = tag("figcaption", tag("span", code.title), button)
    patch = tag("code", joined(lines, Html("\n")), id="patch")
    return tag("figure", head, tag("pre", patch, tabindex="0", aria_label=code.title), class_="patch")


def _line(line: str, *, diff: bool) -> Html:
    """Return a line as it is, its spaces too: it is there to be copied."""
    words = Html("\t".join(shown(part) for part in _spaced(line).split("\t")))
    kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1]) if diff else None
    return tag("span", words, class_=kind) if kind else words


def _spaced(line: str) -> str:
    return line if all(char == "\t" or char.isprintable() for char in line) else clean(line)
