"""Harm that no rule has explained: a harmed step always has a finding that says so."""

from collections.abc import Sequence
from dataclasses import replace

from ampcheck.values.findings import Finding, Severity
from ampcheck.values.outcome import HARM_ERROR, HARM_UNDERFLOW, Outcome, magnified
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site


def with_harm(report: Report, found: Sequence[Finding]) -> list[Finding]:
    """Return findings, with one more where the step was harmed and none of them says so."""
    settled = report.outcomes.get("settled")
    if (
        settled is None
        or not settled.harmed
        or not report.judgeable
        or magnified(report.outcomes)
        or report.recipes is not None
    ):
        return list(found)
    code, severity = _kind(settled), _severity(report, settled)
    worst = min((finding.severity.rank for finding in found), default=len(Severity))
    explained = code[0] == "AMP501" and any(finding.code == code[0] for finding in found)
    if worst <= severity.rank or explained:
        return list(found)
    if code[0] == "AMP501" and any(finding.code == "AMP408" for finding in found):
        return [_with_words(finding, severity, settled) for finding in found]
    return [*found, _unplaced(code, severity, settled)]


def _with_words(finding: Finding, severity: Severity, settled: Outcome) -> Finding:
    """Let a finding on a loss that is not scaled say what came of that."""
    if finding.code != "AMP408":
        return finding
    return replace(finding, severity=severity, message=f"{finding.message}; {settled.words}")


def _severity(report: Report, settled: Outcome) -> Severity:
    """Return how bad an unexplained harm is: in a script, or of a loss that is not the user's, it may be no error."""
    lost = settled.finite and settled.underflow > HARM_UNDERFLOW
    if report.stand_in_loss and lost:
        return Severity.WARNING
    tried = report.loop is None or settled.loss_nonfinite or lost or "rounded" in report.outcomes
    tried = tried or settled.next_error > HARM_ERROR
    return Severity.ERROR if tried else Severity.WARNING


def _kind(settled: Outcome) -> tuple[str, str, str]:
    """Return code, name and kind of the finding that fits an outcome."""
    if settled.raised:
        return "AMP301", "step-raises", "dtype-error"
    if settled.loss_nonfinite:
        return "AMP101", "forward-overflow", "forward-overflow"
    if settled.grads_nonfinite:
        return "AMP202", "gradient-overflow", "backward-overflow"
    if settled.underflow > HARM_UNDERFLOW:
        return "AMP201", "gradient-underflow", "grad-underflow"
    return "AMP501", "precision-loss", "precision-loss"


def _unplaced(code: tuple[str, str, str], severity: Severity, settled: Outcome) -> Finding:
    numbers = {"grad_error": settled.grad_error, "underflow": settled.underflow}
    first = next(iter((*settled.grads_nonfinite, *settled.off)), "")
    module, _, leaf = first.rpartition(".")
    sites = (Site(module, "", f"param_grad[{leaf}]", Phase.STATE, "float32"),) if first else ()
    message = f"{settled.words}; where that begins was not seen"
    return Finding(*code, severity, message, sites, numbers)
