"""Baselines: what was accepted passes, anything else is told, for better or for worse, without line numbers."""

import json
import math
import random
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from builders import finding, magnitudes, report, stats
from examples import NASTY, REPORTS, cnn, forward_overflow, gradient_underflow, planned
from hypothesis import given, settings
from hypothesis import strategies as st

from ampcheck.cli import main
from ampcheck.compare.baseline import Baseline, Layer, Span, accept, held, layers, name, span
from ampcheck.compare.baseline_json import from_json, read, to_json
from ampcheck.compare.differences import MOVED, MOVED_TOP, Change, Kind, compare
from ampcheck.errors import ReportError
from ampcheck.saved.report_json import to_json as report_json
from ampcheck.saved.report_json import write
from ampcheck.values.findings import How, Severity
from ampcheck.values.plan import Plan, ScalerPlan
from ampcheck.values.trace import Phase

MADE = report(cnn())


@pytest.mark.parametrize("example", REPORTS)
def test_a_report_is_as_its_own_baseline_saved_and_read(example):
    made = REPORTS[example]()
    baseline = accept(made, reason="known")
    assert from_json(to_json({name(made): baseline, "other": baseline})) == {
        name(made): baseline,
        "other": baseline,
    }
    assert compare(made, baseline) == ()
    after = held(made, baseline)
    assert after.findings == ()
    assert [one.finding for one in after.suppressed] == list(made.findings)
    assert {one.how for one in after.suppressed} <= {How.BASELINE}


@given(st.floats(-20, 20), st.floats(0, 3), st.integers(0, 99))
def test_a_span_is_what_sorting_gives(center, spread, seed):
    values = magnitudes(str(seed), center, spread)
    found = span(stats(values))
    ordered = sorted(math.log2(abs(value)) for value in values if value)
    assert found.top == pytest.approx(ordered[-1], abs=0.006)
    for share, end in ((0.01, found.low), (0.5, found.typical)):
        # A histogram knows an element's octave, so the quantile is in the octave of the one that sorting finds.
        exact = ordered[math.ceil(share * len(ordered)) - 1]
        assert math.floor(exact) - 0.006 <= end <= math.floor(exact) + 1.006


def test_layers_are_those_that_ran_operations():
    found = layers(MADE)
    assert list(found) == [layer.path for layer in cnn()]
    assert found["stem.bn"].dtypes == ("fp32",)
    assert found["stem.conv"].dtypes == ("fp16",)
    sites = [
        (s, held)
        for s, held in MADE.reference.sites.items()
        if s.module == "head" and s.phase is Phase.BACKWARD
    ]
    assert found["head"].backward == span(sites[0][1])


@settings(max_examples=8)
@given(st.floats(-4, 4), st.sampled_from(["activation", "gradient"]))
def test_a_layer_that_moves_is_told_from_an_octave_on(octaves, what):
    moved = [
        replace(layer, **{what: getattr(layer, what) + octaves}) if layer.path == "head" else layer
        for layer in cnn()
    ]
    found = compare(report(moved), accept(MADE))
    if abs(octaves) < MOVED - 0.02:
        assert found == ()
    if abs(octaves) > MOVED + 0.02:
        assert [(one.kind, one.what) for one in found] == [(Kind.RANGE, "head")]
        assert abs(abs(found[0].octaves) - abs(octaves)) < 0.1  # a median within a bin of one octave
        assert (found[0].octaves > 0) == (octaves > 0)
        assert found[0].phase is (Phase.FORWARD if what == "activation" else Phase.BACKWARD)


def test_a_single_outlier_is_told():
    baseline = accept(MADE)
    layer = baseline.layers["head"]
    lower = replace(layer.forward, top=layer.forward.top - MOVED_TOP - 0.1)
    old = replace(baseline, layers={**baseline.layers, "head": replace(layer, forward=lower)})
    assert [(one.kind, one.what) for one in compare(MADE, old)] == [(Kind.RANGE, "head")]
    near = replace(layer.forward, top=layer.forward.top - MOVED_TOP + 0.1, low=layer.forward.low - 9)
    old = replace(baseline, layers={**baseline.layers, "head": replace(layer, forward=near)})
    assert compare(MADE, old) == ()


def test_lines_do_not_matter():
    site = forward_overflow().findings[0].sites[0]
    moved = replace(
        forward_overflow(), findings=(finding(site._replace(line=999), "AMP101", severity=Severity.ERROR),)
    )
    before = replace(forward_overflow(), findings=(finding(site, "AMP101", severity=Severity.ERROR),))
    assert compare(moved, accept(before, reason="known")) == ()
    # The same operation at another line of the same module is one more.
    twice = replace(before, findings=before.findings + moved.findings)
    told = compare(twice, accept(before, reason="known"))
    assert [(one.change, one.before, one.after) for one in told] == [(Change.WORSE, "error", "2 × error")]
    assert len(held(twice, accept(before, reason="known")).findings) == 1


def test_both_sides_are_told():
    clean, broken = report(cnn()), replace(report(cnn()), findings=gradient_underflow().findings)
    new = compare(broken, accept(clean))
    assert [(one.kind, one.change, one.what, one.before, one.after) for one in new] == [
        (Kind.FINDING, Change.WORSE, "AMP201 gradient-underflow", "", "error")
    ]
    gone = compare(clean, accept(broken, reason="known"))
    assert [(one.change, one.before, one.after) for one in gone] == [(Change.BETTER, "error", "")]


def test_a_finding_that_became_worse_counts_again():
    site = next(iter(MADE.low.sites))
    warned = replace(MADE, findings=(finding(site, severity=Severity.WARNING),))
    failed = replace(MADE, findings=(finding(site, severity=Severity.ERROR),))
    baseline = accept(warned, reason="known")
    assert held(failed, baseline).findings == failed.findings
    assert [one.change for one in compare(failed, baseline)] == [Change.WORSE]
    assert held(warned, accept(failed, reason="known")).findings == ()
    assert [one.change for one in compare(warned, accept(failed, reason="known"))] == [Change.BETTER]


def test_reasons_are_asked_for_and_kept():
    made = forward_overflow()
    fresh = accept(made)
    assert [one.kind for one in compare(made, fresh)] == [Kind.REASON]
    assert held(made, fresh).findings == made.findings
    told = accept(made, fresh, "bounded upstream")
    assert compare(made, told) == ()
    assert accept(made, told) == told
    assert accept(made, told, "another") == told


def test_the_plan_the_scale_and_the_way_are_compared():
    old = accept(planned(), reason="known")
    plan = Plan("fp16", ("blocks.1.attn", "head"), ("losses.py:9", "model.py:1"), ScalerPlan(2.0**11))
    new = replace(planned(), plan=plan, log2_scale=14)
    assert [(one.kind, one.change, one.what, one.before, one.after) for one in compare(new, old)] == [
        (Kind.PLAN, Change.WORSE, "modules in FP32", "blocks.1.attn", "blocks.1.attn, head"),
        (Kind.PLAN, Change.OTHER, "first loss scale", "2^13", "2^11"),
        (Kind.SCALE, Change.OTHER, "loss scale", "2^16", "2^14"),
    ]
    fewer = replace(planned(), plan=Plan("fp16", ("blocks.1.attn",), ("model.py:60",), ScalerPlan(2.0**12)))
    assert [(one.change, one.what) for one in compare(fewer, old)] == [(Change.BETTER, "lines in FP32")]
    assert Kind.TRIED in {one.kind for one in compare(replace(planned(), outcomes={}, plan=None), old)}


def test_layers_and_dtypes_are_compared():
    changed = [replace(layer, dtype="float32") if layer.path == "head" else layer for layer in cnn()[1:]]
    told = {(one.kind, one.what, one.before, one.after) for one in compare(report(changed), accept(MADE))}
    assert {(Kind.LAYER, "stem.conv", "there", ""), (Kind.DTYPE, "head", "fp16", "fp32")} <= told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "something that is not JSON"),
        ("{}", "schema 1, got None"),
        ("[]", "schema 1, got None"),
        (
            '{"ampcheck_baseline": 2, "audits": {}}',
            "schema 1, got 2; read it with the ampcheck that wrote it",
        ),
        ('{"ampcheck_baseline": 1}', "a damaged one"),
        ('{"ampcheck_baseline": 1, "audits": {"a": {"log2_scale": "x"}}}', "a damaged one"),
        ('{"ampcheck_baseline": 1, "audits": {"a": 3}}', "a damaged one"),
    ],
)
def test_a_file_that_cannot_be_read_is_status_2(tmp_path, capsys, text, told):
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=told):
        read(path)
    write(tmp_path / "r.json", report_json(MADE))
    assert main(["show", str(tmp_path / "r.json"), "--baseline", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert str(path) in err


def test_any_damage_is_told(tmp_path):
    text = to_json({"a": accept(planned(), reason="known")})
    draw = random.Random(1)
    for _ in range(300):
        at = draw.randrange(len(text))
        broken = text[:at] + draw.choice('"{}[],:x0') + text[at + draw.randint(0, 3) :]
        try:
            found = from_json(broken)
        except ReportError:
            continue
        assert all(isinstance(baseline, Baseline) for baseline in found.values())


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    broken = forward_overflow()
    write("r.json", report_json(broken))
    assert main(["show", "r.json", "--baseline", "b.json"]) == 2
    assert "ampcheck show r.json --baseline b.json --update-baseline" in capsys.readouterr().err
    assert main(["baseline", "r.json", "-o", "b.json"]) == 0
    assert "AMP101 forward-overflow at blocks.1.attn · bmm: accepted by " in capsys.readouterr().err
    assert main(["show", "r.json", "--baseline", "b.json"]) == 0  # one command is enough
    text = Path("b.json").read_text()
    assert re.search(rf"accepted by .+ on {date.today():%Y-%m-%d}", text)  # noqa: DTZ011
    write("b.json", re.sub(r'"accepted by [^"]*"', '""', text))  # a reason that somebody has deleted
    capsys.readouterr()
    assert main(["show", "r.json", "--baseline", "b.json"]) == 1
    assert "ampcheck show r.json --baseline b.json --update-baseline --reason '…'" in capsys.readouterr().err
    assert main(["show", "r.json", "--baseline", "b.json", "--update-baseline", "--reason", "known"]) == 0
    assert main(["show", "r.json", "--baseline", "b.json"]) == 0
    # An improvement is told as well, with the command that accepts it; that command does what it says.
    write("r.json", report_json(replace(broken, findings=())))
    capsys.readouterr()
    assert main(["show", "r.json", "--baseline", "b.json"]) == 1
    err = capsys.readouterr().err
    assert "AMP101 forward-overflow at blocks.1.attn · bmm is gone (error)\n" in err
    assert "stale entry" in err
    assert main(err.splitlines()[-1].split()[1:]) == 0
    assert main(["show", "r.json", "--baseline", "b.json"]) == 0
    # Several audits share a file, and one that is not in it is not passed over.
    write("s.json", report_json(replace(broken, target="other.py")))
    assert main(["show", "s.json", "--baseline", "b.json"]) == 2
    assert "no baseline of 'other.py fp16', it has 'model.py fp16'" in capsys.readouterr().err
    assert main(["baseline", "s.json", "-o", "b.json", "--reason", "x"]) == 0
    assert set(json.loads(Path("b.json").read_text())["audits"]) == {"model.py fp16", "other.py fp16"}
    assert main(["show", "r.json", "--update-baseline"]) == 2


def test_the_project_names_its_baseline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text('[tool.ampcheck]\nbaseline = "ci/base.json"\n')
    Path("ci").mkdir()
    write("r.json", report_json(MADE))
    assert main(["baseline", "r.json"]) == 0
    assert Path("ci/base.json").is_file()
    assert main(["show", "r.json"]) == 0
    write("r.json", report_json(report(cnn()[:-2])))
    assert main(["show", "r.json"]) == 1
    assert "layer head is gone" in capsys.readouterr().err


def test_names_are_kept_and_shown_harmlessly(capsys, tmp_path):
    nasty = REPORTS["nasty"]()
    write(tmp_path / "r.json", report_json(nasty))
    for _ in range(2):
        main(["baseline", str(tmp_path / "r.json"), "-o", str(tmp_path / "b.json")])
        main(["show", str(tmp_path / "r.json"), "--baseline", str(tmp_path / "b.json")])
    assert list(read(tmp_path / "b.json")) == [name(nasty)]
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert NASTY[3] not in out + err


def test_spans_of_nothing():
    empty = Layer(("fp16",), None, None)
    full = Layer(("fp16",), Span(-1.0, 0.0, 1.0), None)
    old = replace(accept(MADE), layers={"a": full, "b": empty})
    assert from_json(to_json({"x": old}))["x"].layers == {"a": full, "b": empty}
