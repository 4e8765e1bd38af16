"""Small versions of the studies in tests/studies, and that their judges can say no."""

import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from alarm_text import page as alarm_page
from alarm_text import proved
from failures import FAILURES, walk
from false_alarms import Proof, Row, audited, built, remembered
from judge import Opinion, Training, opinion, rounded
from lines import lines_wide
from minimality import CASES, smallest, study
from ordinary import ORDINARY, REPRESENTATIVE
from suite_times import left_out, times

from ampcheck.saved.report_json import to_json
from ampcheck.values.findings import Finding, Severity

BY_NAME = {case.name: case for case in CASES}
MINIMAL = ["two in a chain", "ancestor", "line and module"]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("spec", REPRESENTATIVE)
def test_ordinary_models_raise_no_alarm_and_a_plain_loop_sees_the_same_error(spec, precision):
    row = audited(spec, precision, budget=2.0)
    assert not row.raised
    assert not row.errors
    settled = row.report.outcomes["settled"]
    said = opinion(partial(built, spec, 0), precision, settled.log2_scale)
    assert said.error == pytest.approx(settled.grad_error, rel=0.1)
    assert said.underflow == pytest.approx(settled.underflow, abs=0.01)


def test_there_are_sixty_models_of_three_zoos():
    zoos = [spec.partition(":")[0] for spec in ORDINARY]
    assert len(set(ORDINARY)) == len(ORDINARY) >= 60
    assert zoos.count("torchvision") >= 30
    assert min(zoos.count("timm"), zoos.count("transformers")) >= 15


def test_rounded_weights_turn_the_gradient_by_about_the_rounding_of_the_format():
    errors = {
        precision: rounded(partial(built, "transformers:bert", 0), precision)
        for precision in ("fp16", "bf16")
    }
    assert 2**-12 < errors["fp16"] < 2**-9
    assert errors["bf16"] / errors["fp16"] == pytest.approx(8, rel=0.5)  # three bits fewer


def test_an_alarm_is_proved_only_by_harm_in_every_draw_that_the_plan_heals():
    row = Row("torchvision:none", "fp16", None)
    finding = Finding("AMP501", "precision-loss", "precision-loss", Severity.ERROR, "wrong")
    ill, well = Opinion(16, 0.5, 0.0, 0.0), Opinion(16, 0.01, 0.0, 0.0)
    assert proved(Proof(row, finding, (ill, ill), (well, well)))
    assert proved(Proof(row, finding, (ill, Opinion(16, 0.0, 0.0, 0.5)), ()))
    barely = Opinion(16, 0.14, 0.0, 0.0)  # below what harm is, and hardly less than before
    assert not proved(Proof(row, finding, (Opinion(16, 0.16, 0.0, 0.0),), (barely,)))
    assert not proved(Proof(replace(row, rounded=0.3), finding, (ill, ill), (well, well)))
    overflow = replace(finding, kind="backward-overflow")
    assert not proved(Proof(row, overflow, (ill, ill), ()))  # settled at a smaller scale
    assert proved(Proof(row, overflow, (Opinion(0, math.inf, 0.0, 0.0),), ()))
    assert not proved(Proof(row, finding, (ill, well), (well, well)))
    assert not proved(Proof(row, finding, (ill, ill), (well, ill)))
    worse = (Training(5.3758, 5.3787, 5.3758), Training(5.3742, 5.3795, 5.3742))
    assert proved(Proof(row, finding, (ill, well), (well, well), worse))
    better = (Training(5.3758, 5.3787, 5.3758), Training(5.3795, 5.3742, 5.3795))  # than FP32, once
    assert not proved(Proof(row, finding, (ill, well), (well, well), better))
    no_help = (Training(5.374, 5.38, 5.378), Training(5.3746, 5.3788, 5.3746))
    assert not proved(Proof(row, finding, (ill, well), (well, well), no_help))


def test_the_page_counts_what_the_rows_hold_and_audits_are_remembered(tmp_path):
    rows = [audited("transformers:bert", precision, budget=1.0) for precision in ("fp16", "bf16")]
    finding = Finding("AMP999", "x", "x", Severity.ERROR, "said so")
    accused = replace(rows[0], report=replace(rows[0].report, findings=(finding,)))
    proof = Proof(accused, finding, (Opinion(16, 0.01, 0.0, 0.0),), ())
    text = alarm_page([accused, rows[1]], [proof], 1.0)
    assert "**1 error findings** in 2 audits, **0 of them proved**" in text
    assert "| transformers:bert | AMP999 | none | 2^16 |" in text
    assert "AMP999 **not proved**" in text
    kept = tmp_path / "kept.json"
    kept.write_text(to_json(accused.report), encoding="utf-8")
    assert not remembered(kept, "transformers:bert", "fp16").errors  # judged anew
    kept.write_text("{}", encoding="utf-8")
    assert remembered(kept, "transformers:bert", "fp16") is None


@pytest.mark.parametrize("name", MINIMAL)
def test_the_set_found_is_as_small_as_the_smallest(name):
    result = study(BY_NAME[name])
    assert result.small
    assert result.heals
    assert len(result.by_lab) == len(result.by_loop) == len(result.found) == BY_NAME[name].needs


def test_the_search_over_all_sets_finds_the_smallest():
    places = list("abcde")
    assert len(smallest_of(places, {"b", "d"})) == 2
    assert smallest_of(places, set()) == ()
    assert smallest_of(places, {"z"}) is None


def smallest_of(places, needed):
    from ampcheck.diagnose.suspects import Suspect

    suspects = [Suspect(module=place) for place in places]
    return smallest(suspects, lambda chosen: needed <= {one.module for one in chosen})


def test_wide_lines_reach_the_line_and_not_the_modules_it_calls():
    linear = torch.nn.Linear(4, 4)
    seen = []
    linear.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    x = torch.ones(2, 4, dtype=torch.float16)
    with lines_wide([(Path(__file__).name, here() + 2)]), torch.autocast("cpu", torch.float16):
        product = x * 2.0
        product = x * 2.0 + linear(x)
        other = x * 2.0
    assert (product.dtype, other.dtype, seen) == (torch.float32, torch.float16, [torch.float16])


def here() -> int:
    return sys._getframe(1).f_lineno


EXPECTED = {
    "t5_feed_forward.py": ("forward-overflow", "blocks.3.1", ("blocks.3.1",)),
    "nerf_whole_image.py": ("grad-underflow", None, ()),
    "rope_positions.py": ("precision-loss", "attention.rotary", ("attention.rotary",)),
}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.file)
def test_a_failure_is_found_and_its_plan_trains_as_fp32(failure):
    done = walk(failure, steps=24)
    kind, module, places = EXPECTED[failure.file]
    worst, plan = done.report.findings[0], done.report.plan
    assert (worst.severity, worst.kind) == (Severity.ERROR, kind)
    assert module is None or worst.origin.module == module
    assert (plan.precision, plan.fp32_modules, plan.fp32_lines) == (failure.precision, places, ())
    assert done.before.harmed(0.15)
    assert not done.after.harmed(0.02)
    assert done.planned.losses[-1] == pytest.approx(done.fp32.losses[-1], rel=0.05)
    assert done.usual.losses[-1] != pytest.approx(done.fp32.losses[-1], rel=0.05)
    assert json.loads(plan.to_json())["precision"] == failure.precision


def test_a_plain_run_leaves_out_the_longest_tests_until_the_others_fit(tmp_path):
    file = tmp_path / "times.xml"
    rows = [
        ("a.test_x", "test_few[1]", 1.0),
        ("a.test_x", "test_few[2]", 1.5),
        ("b.test_y", "test_long", 9.0),
    ]
    cases = "".join(f'<testcase classname="tests.{c}" name="{n}" time="{t}"/>' for c, n, t in rows)
    file.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    taken = times(file)
    assert taken == {"a/test_x.py::test_few": 2.5, "b/test_y.py::test_long": 9.0}
    assert left_out(taken, 11.4) == ["b/test_y.py::test_long"]
    assert left_out(taken, 11.5) == []
