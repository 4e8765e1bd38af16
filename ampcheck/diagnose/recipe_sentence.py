"""What an audit of recipes comes to: a word for its health, and a sentence."""

from collections.abc import Iterator

from ampcheck.values.findings import Severity
from ampcheck.values.recipe_audit import RecipeAudit, RecipeOutcome
from ampcheck.values.report import Report
from ampcheck.values.wording import clean, count, percent, plural


def recipe_sentence(report: Report, audit: RecipeAudit) -> tuple[str, str]:
    """Return what recipes do to the step: safe is only what was rounded and judged in every layer."""
    worst = min(report.findings, key=lambda finding: finding.severity.rank, default=None)
    if worst is not None and worst.severity is Severity.ERROR:
        return "unsafe", clean(worst.message)
    if not audit.layers or not audit.judged:
        why = "no linear layer ran" if not audit.layers else "bf16 itself determines no gradient"
        return "unknown", f"{audit.asked} was not judged: {why}"
    chosen = _chosen(report, audit)
    if chosen is None:
        return "risk", f"{audit.asked} could not be confirmed"
    name, error = chosen.worst
    seen = f"the worst gradient, of {clean(name)}, is off by {percent(error)}"
    shown = f"{chosen.recipe} trains as bf16 does here: {seen}; {plural(len(audit.layers), 'layer')} rounded"
    if worst is not None and worst.severity is Severity.WARNING:
        return "risk", shown
    missing = [*_missing(audit)]
    return ("partly audited", f"{'; '.join(missing)}; {shown}") if missing else ("safe", shown)


def _missing(audit: RecipeAudit) -> Iterator[str]:
    """Yield what was not judged."""
    if audit.undetermined:
        whole = len(audit.judged) + len(audit.undetermined)
        left = f"{len(audit.undetermined)} of {plural(whole, 'gradient')}"
        yield f"{left} could not be judged, because bf16 itself is off there"
    yield from (f"{count(times)} {what}" for what, times in audit.left.items() if times)


def _chosen(report: Report, audit: RecipeAudit) -> RecipeOutcome | None:
    """Return the outcome of the recipe that the plan takes as it is."""
    healthy = [result.outcome for result in audit.results if not result.harmed]
    return next((o for o in healthy if report.plan is not None and o.recipe == report.plan.recipe), None)
