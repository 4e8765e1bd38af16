"""The tables of recipes for a terminal, for Markdown and for the page."""

from collections.abc import Iterator, Sequence

from ampcheck.diagnose.recipe_rows import HEADS, OPERAND_HEADS, counts, operand_rows, recipe_rows
from ampcheck.renderers.drawing import cells, fitted
from ampcheck.renderers.layout import Parts, fixed, text, title
from ampcheck.renderers.markup import code, inline, table
from ampcheck.renderers.page.elements import Html, tag
from ampcheck.renderers.page.picture import operands
from ampcheck.values.report import Report
from ampcheck.values.wording import clean

#: Columns of a terminal for one cell.
_CELL = 30


def terminal_tables(report: Report) -> Parts:
    """Yield the recipes, then what their operands lost."""
    if report.recipes is None:
        return
    yield from title("Recipes", f"against the same step in bf16 · {counts(report.recipes)}")
    yield from _columns(HEADS, [row.cells for row in recipe_rows(report)])
    rows = operand_rows(report)
    if rows:
        yield from title("Operands", "scaled, as the formats were given them; those that lose most")
        yield from _columns(OPERAND_HEADS, rows)


def _columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Parts:
    shown = [[fitted(clean(cell), _CELL) for cell in row] for row in rows]
    widths = [max(cells(row[at]) for row in [list(heads), *shown]) for at in range(len(heads))]
    # A column that says the same in every row is in the title already.
    used = [at for at in range(len(heads)) if any(row[at] for row in shown)]
    if len(shown) > 1 and len({row[0] for row in shown}) == 1:
        used.remove(0)
    yield from fixed([text(("  ".join(heads[at].ljust(widths[at]) for at in used), "dim"))])
    for row in shown:
        yield from fixed(
            [text("  ".join(row[at] + " " * (widths[at] - cells(row[at])) for at in used).rstrip())]
        )


def markdown_tables(report: Report) -> Iterator[str]:
    """Yield the same as Markdown."""
    if report.recipes is None:
        return
    yield "## Recipes"
    yield inline(f"Against the same step in bf16; {counts(report.recipes)}.")
    yield table(
        HEADS, [tuple(code(cell) if cell else "" for cell in row.cells) for row in recipe_rows(report)]
    )
    rows = operand_rows(report)
    if rows:
        yield "### Operands that lose most"
        yield table(OPERAND_HEADS, [tuple(code(cell) for cell in row) for row in rows])


def page_tables(report: Report) -> Html | None:
    """Return the same as a section of the page."""
    if report.recipes is None:
        return None
    rows = operand_rows(report)
    parts: list[Html] = [
        tag("h2", "Recipes ", tag("small", counts(report.recipes)), id="recipes-title"),
        _table(HEADS, [row.cells for row in recipe_rows(report)], "Table of the recipes"),
    ]
    if rows:
        parts += [tag("h3", "Operands that lose most"), _table(OPERAND_HEADS, rows, "Table of the operands")]
    for result in report.recipes.results:
        drawn = [*operands(result)]
        if drawn:
            name = tag("summary", f"Operands of {result.outcome.recipe}, as its formats were given them")
            parts.append(tag("details", name, drawn, open=len(report.recipes.results) == 1))
    return tag("section", parts, id="recipes", aria_labelledby="recipes-title")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> Html:
    body = [tag("tr", [tag("td", cell) for cell in row]) for row in rows]
    head = tag("thead", tag("tr", [tag("th", name, scope="col") for name in heads]))
    return tag(
        "div",
        tag("table", head, tag("tbody", body)),
        class_="wide",
        tabindex="0",
        role="region",
        aria_label=label,
    )
