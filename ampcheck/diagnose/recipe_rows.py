"""The tables of an audit of recipes: a row a recipe, and a row an operand that loses most."""

from collections.abc import Iterator
from dataclasses import dataclass

from ampcheck.values.recipe_audit import RecipeAudit, RecipeResult
from ampcheck.values.recipes import recipe
from ampcheck.values.report import Report
from ampcheck.values.wording import percent

#: Operands of a recipe that are shown.
OPERANDS, OF_SEVERAL = 8, 3
HEADS = ("recipe", "verdict", "worst gradient", "error", "remedy", "hardware")
OPERAND_HEADS = ("recipe", "layer", "GEMM", "operand", "zero", "cut off", "error", "format", "scales")


@dataclass(frozen=True, slots=True)
class RecipeRow:
    """One recipe in a few words."""

    name: str
    verdict: str  #: trains, harms, weak
    parameter: str
    error: str
    remedy: str
    hardware: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        return self.name, self.verdict, self.parameter, self.error, self.remedy, self.hardware


def recipe_rows(report: Report) -> list[RecipeRow]:
    """Return a row for each recipe that was tried."""
    return [_row(result) for result in report.recipes.results] if report.recipes is not None else []


def operand_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the operands that lose most, of the recipe asked for; of several, of those that harm."""
    results = report.recipes.results if report.recipes is not None else ()
    several = len(results) > 1
    shown = [result for result in results if result.harmed or not several]
    return [row for result in shown for row in _operands(result, OF_SEVERAL if several else OPERANDS)]


def counts(audit: RecipeAudit) -> str:
    """Return how much of the model was judged."""
    whole = len(audit.judged) + len(audit.undetermined)
    return f"{len(audit.layers)} layers rounded, {len(audit.judged)} of {whole} gradients judged"


def _row(result: RecipeResult) -> RecipeRow:
    harm = result.harm
    name, error = harm.worst
    plan = result.plan
    remedy = ""
    if plan is not None and plan.healed:
        gemms = f" ({' and '.join(plan.gemms)})" if plan.gemms else ""
        remedy = f"{', '.join(plan.bf16_modules) or 'every layer'}{gemms} in bf16"
        if not plan.bf16_modules and not plan.gemms:
            remedy = plan.recipe
    elif plan is not None:
        remedy = "none found"
    return RecipeRow(
        harm.recipe,
        _verdict(result),
        "raises" if harm.raised else name,
        percent(error) if name else "",
        remedy,
        recipe(harm.recipe).hardware,
    )


def _verdict(result: RecipeResult) -> str:
    word = "harms" if result.harmed else "trains"
    return f"{word} (weak)" if result.outcome.four_bit and result.ends_as_bf16 is None else word


def _operands(result: RecipeResult, most: int) -> Iterator[tuple[str, ...]]:
    ranked = sorted(result.operands, key=lambda row: -row.lost)
    for row in ranked[:most]:
        low, high = row.scales
        yield (
            result.outcome.recipe,
            row.module or "(root)",
            row.gemm,
            row.operand.replace("_", " "),
            percent(row.underflow_share),
            percent(row.saturated_share),
            percent(row.error),
            row.format,
            f"{low:.2g}" if low == high else f"{low:.2g}…{high:.2g}",
        )
