"""The recipes that were tried, and the operands that underflow or are cut off most."""

from collections.abc import Sequence

from ampcheck.diagnose.recipe_rows import HEADS, OPERAND_HEADS, counts, operand_rows, recipe_rows
from ampcheck.renderers.view import Column, Picture, Section, Table
from ampcheck.values.report import Report


def recipes(report: Report) -> Section | None:
    """Return what each recipe does to a step."""
    if report.recipes is None:
        return None
    about = f"compared with the same step in bf16 · {counts(report.recipes)}"
    table = _table(HEADS, [row.cells for row in recipe_rows(report)])
    return Section("recipes", "Recipes", about, (table, Picture("operands", "operands by powers of two")))


def operands(report: Report) -> Section | None:
    """Return what the formats made of the operands."""
    rows = operand_rows(report)
    about = "scaled, as the formats were given them; the worst of each recipe"
    return Section("operands", "Operands", about, (_table(OPERAND_HEADS, rows),)) if rows else None


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table("row", [Column(head) for head in heads], rows)
