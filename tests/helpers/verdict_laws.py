"""What holds of every report: its verdict is that of its findings and of what was seen, and its words agree."""

import re

from ampcheck.cli.output import _status
from ampcheck.diagnose.verdict import judge
from ampcheck.renderers import render
from ampcheck.values.findings import Severity
from ampcheck.values.outcome import AGREES, MAGNIFIES
from ampcheck.values.plan import Tried
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health

#: What says that a loss scale is of no use, each as a report words it.
NO_SCALE = ("no loss scale fits", "no loss scale heals it", "a loss scale alone cannot prevent it")


def errors(report: Report) -> list[str]:
    """Return the codes of the errors that count."""
    return [finding.code for finding in report.findings if finding.severity is Severity.ERROR]


def check_the_law(report: Report) -> None:
    """Assert what holds of every report."""
    verdict = report.verdict
    assert (verdict.word is Health.UNSAFE) == bool(errors(report))
    assert verdict == judge(report)
    if verdict.word is Health.UNSAFE:
        assert set(verdict.reasons) == set(errors(report))
    if verdict.word is Health.SAFE:
        check_that_it_was_seen(report)
    assert _status(report, "error") == (verdict.word is Health.UNSAFE)
    assert _status(report, "never") == 0


def check_that_it_was_seen(report: Report) -> None:
    """Assert that nothing is missing of what a safe report needs."""
    coverage = report.verdict.coverage
    assert (coverage.unseen, coverage.raised, coverage.asked, coverage.gaps) == ({}, "", "", ())
    assert report.loop is None or coverage.completed
    assert report.judgeable
    assert coverage.judged
    assert not report.dry
    assert all(held.finding.severity is not Severity.ERROR for held in report.suppressed)
    assert all(finding.severity is Severity.INFO for finding in report.findings)
    settled, rounded = report.outcomes.get("settled"), report.outcomes.get("rounded")
    if settled is not None and rounded is not None and not settled.outputs:
        assert settled.grad_error <= max(AGREES, MAGNIFIES * rounded.error)


def check_words(report: Report) -> None:
    """Assert that no format of a report says two things."""
    for shape in ("terminal", "markdown", "html"):
        text = " ".join(re.sub(r"<[^>]*>", " ", render(report, shape)).split())
        check_text(report, text)


def check_text(report: Report, text: str) -> None:
    """Assert that a text does not say two things of a report."""
    alone = [
        claim
        for claim in report.claims
        if claim.claim.startswith("start the loss scale") and claim.tried is Tried.CONFIRMED
    ]
    kept = report.plan is not None and (report.plan.fp32_modules or report.plan.fp32_lines)
    if alone and not kept:
        assert not any(said in text for said in NO_SCALE)
    if report.verdict.word in {Health.PARTLY_AUDITED, Health.UNKNOWN}:
        assert "is safe here" not in text
        assert "works here" not in text
    if report.plan is not None and report.plan.precision != report.precision:
        assert f"recommended: {report.precision}" not in text
    if kept and "the first to overflow" in text:
        assert "the first to overflow without the plan" in text
    if "GradScaler refuses their float16 gradients" in text and report.loop is None:
        assert "with loss scale" not in report.verdict.sentence
        assert report.plan is None or report.plan.scaler is None
    if not report.random_weights:
        assert "weights are random (" not in text
        assert "audit trained weights" not in text
