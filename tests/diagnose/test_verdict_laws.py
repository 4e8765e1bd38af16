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
from running import CASES, load
from saved_reports import SAVED, saved
from verdict_laws import check_the_law, check_words, errors

from ampcheck.cli import main
from ampcheck.cli.output import _status
from ampcheck.compare.config import FAIL_ON, Config
from ampcheck.compare.select import select
from ampcheck.errors import ReportError
from ampcheck.pytest_plugin.expectations import Audited
from ampcheck.pytest_plugin.summary import properties
from ampcheck.renderers import render
from ampcheck.run.audit import audit
from ampcheck.saved.report_json import from_json, to_json, write
from ampcheck.targets import load as load_target
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Settings
from ampcheck.values.verdict import Health

KNOWN = {
    **{f"saved {name}": saved(name) for name in SAVED},
    **{f"example {name}": make() for name, make in REPORTS.items()},
    "hostile": hostile(),
}
known = pytest.mark.parametrize("report", KNOWN.values(), ids=KNOWN)


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
def test_what_shows_and_compares_a_saved_report_exits_by_its_verdict(report, tmp_path, capsys):
    unsafe = report.verdict.word is Health.UNSAFE
    before, after = (str(tmp_path / name) for name in ("before.json", "after.json"))
    write(before, to_json(REPORTS["clean"]()))
    write(after, to_json(report))
    assert main(["show", after]) == unsafe
    assert main(["diff", after, after]) == 0
    assert main(["diff", before, after]) >= unsafe
    assert main(["show", after, "--format", "junit"]) == unsafe
    shown = ET.fromstring(capsys.readouterr().out.split("\n<?xml")[-1].partition("?>")[2])
    assert (int(shown.attrib["failures"]) > 0) == unsafe


@known
def test_words_do_not_contradict_each_other(report):
    check_words(report)


#: Of the zoo, one of each kind and more, all of which are audited in a moment.
QUICK = """auxiliary_weight_1e7 clean_converged_regression clean_missing_targets_nan clean_rotary_in_float
distillation_without_t_squared entropy_of_flushed_probability geodesic_acos_bf16 gram_before_division
logit_scale_bf16_param momentum_teacher_two_dtypes sgd_small_rate_fp16_weights spectral_loss_bf16""".split()


@pytest.mark.parametrize("name", QUICK)
def test_the_laws_hold_of_audits(name):
    case = load(CASES / f"{name}.py")
    report = audit(
        load_target(str(CASES / f"{name}.py")),
        Settings(precision={"float16": "fp16", "bfloat16": "bf16"}[case.TRUTH["dtype"]]),
    )
    check_the_law(report)
    check_words(report)
