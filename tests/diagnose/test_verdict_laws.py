"""One verdict: whatever prints, exits, asserts or compares says the same, and safe is only what was seen."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from examples import REPORTS
from hostile import hostile
from hypothesis import given
from hypothesis import strategies as st
from report_strategies import judged_reports
from saved_reports import SAVED, saved

from ampcheck.cli.output import _status
from ampcheck.compare.config import FAIL_ON, Config
from ampcheck.compare.select import select
from ampcheck.diagnose.verdict import judge
from ampcheck.errors import ReportError
from ampcheck.pytest_plugin.expectations import Audited
from ampcheck.pytest_plugin.summary import properties
from ampcheck.renderers import render
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.findings import Severity
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health

KNOWN = {
    **{f"saved {name}": saved(name) for name in SAVED},
    **{f"example {name}": make() for name, make in REPORTS.items()},
    "hostile": hostile(),
}
known = pytest.mark.parametrize("report", KNOWN.values(), ids=KNOWN)


def errors(report: Report) -> list[str]:
    return [finding.code for finding in report.findings if finding.severity is Severity.ERROR]


def check_the_law(report: Report) -> None:
    """Assert what holds of every report: its verdict is that of its findings and of what was seen."""
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
    coverage = report.verdict.coverage
    assert (coverage.unseen, coverage.raised, coverage.asked, coverage.gaps) == ({}, "", "", ())
    assert report.loop is None or coverage.completed
    assert report.judgeable
    assert not report.dry
    assert all(held.finding.severity is not Severity.ERROR for held in report.suppressed)
    assert all(finding.severity is Severity.INFO for finding in report.findings)


@known
def test_the_law_of_every_known_report(report):
    check_the_law(report)


@given(judged_reports)
def test_the_law_of_any_report(report):
    check_the_law(report)


@known
def test_every_format_says_the_same_verdict(report):
    word, unsafe = str(report.verdict.word), report.verdict.word is Health.UNSAFE
    assert json.loads(to_json(report))["verdict"]["word"] == word
    assert json.loads(to_json(report))["verdict"]["sentence"] == report.verdict.sentence
    first = " ".join(render(report, "terminal").splitlines()[2].split())
    assert first.startswith(word.upper())
    assert f"**{word.upper()}**" in render(report, "markdown")
    assert f"**{word.upper()}**" in render(report, "github-summary")
    assert f"<title>{word.upper()} " in render(report, "html")
    annotation = render(report, "github").splitlines()[0]
    assert annotation.startswith("::error ") == unsafe
    sarif = json.loads(render(report, "sarif"))["runs"][0]
    assert sarif["properties"]["health"] == word
    counting = [held for held in sarif["results"] if not held.get("suppressions")]
    assert any(held["level"] == "error" for held in counting) == unsafe
    suite = ET.fromstring(render(report, "junit"))
    assert (int(suite.attrib["failures"]) > 0) == unsafe
    assert dict(properties(report))["ampcheck.health"] == word
    assert word in repr(Audited(report))


@known
def test_what_is_asserted_follows_the_verdict(report):
    """A test passes where the step is safe, or works with warnings."""
    try:
        Audited(report).assert_safe()
    except AssertionError:
        assert report.verdict.word not in {Health.SAFE, Health.RISK}
    else:
        assert report.verdict.word in {Health.SAFE, Health.RISK}


@given(judged_reports, st.sampled_from(FAIL_ON))
def test_the_exit_status_follows_the_findings_that_count(report, limit):
    worst = min((finding.severity.rank for finding in report.findings), default=99)
    expected = limit != "never" and worst <= Severity(limit).rank
    assert _status(report, limit) == expected


@known
def test_what_is_ignored_moves_verdict_and_status_together(report):
    codes = {finding.code for finding in report.findings if finding.code.startswith("AMP")}
    for code in sorted(codes):
        left = select(report, Config(ignore=(code,)))
        check_the_law(left)
        if code in errors(report):
            assert left.verdict.word is not Health.SAFE
            assert left.verdict != report.verdict
    none = select(report, Config(ignore=tuple(codes)))
    assert none.verdict.word is not Health.UNSAFE or errors(none)
    only = select(report, Config(select=("AMP999",)))
    assert only.verdict.word is not Health.UNSAFE
    assert (only.verdict.word is Health.SAFE) <= (not errors(report))


@known
def test_a_report_shown_later_says_the_same(report):
    """A later version may judge otherwise: it shows what was written down."""
    other = replace(report, verdict=replace(report.verdict, word=Health.RISK, sentence="as it was said then"))
    again = from_json(to_json(other))
    assert again.verdict == other.verdict
    assert "as it was said then" in render(again, "markdown")


@known
def test_a_report_without_a_verdict_is_refused(report):
    text = re.sub(r'\n "verdict": .*', "", to_json(report))
    assert '"verdict"' not in text
    with pytest.raises(ReportError, match="without a verdict"):
        from_json(text)


@known
def test_words_do_not_contradict_each_other(report):
    text = " ".join(render(report, "markdown").split())
    confirmed = any(
        "loss scale" in claim.claim and claim.tried == "confirmed" and "in FP32" not in claim.claim
        for claim in report.claims
    )
    assert not (confirmed and "no loss scale helps" in text)
    if report.verdict.word in {Health.PARTLY_AUDITED, Health.UNKNOWN}:
        assert "is safe here" not in text
        assert "works here" not in text
    if report.plan is not None and report.plan.precision != report.precision:
        assert f"recommended: {report.precision}" not in text
