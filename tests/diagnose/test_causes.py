"""One cause, one finding: what follows is listed below it; and what a scale alone heals is healed by a scale."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from builders import answer, finding
from examples import clean
from running import CASES, load
from torch import nn
from torch.nn import functional

from ampcheck import check
from ampcheck.diagnose.rules import first_places
from ampcheck.diagnose.rules.causes import by_cause
from ampcheck.renderers import terminal
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.findings import Severity
from ampcheck.values.loop import Event, Kind, Loop, ScaleEvent
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Plan, Tried
from ampcheck.values.settings import Settings
from ampcheck.values.trace import Phase, Site, UpdateLoss
from ampcheck.values.verdict import Health

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def zoo(name, **settings):
    case = load(CASES / f"{name}.py")
    return check(case.model(), case.batch(), case.loss, settings=Settings(**settings))


def found(code, module, severity=ERROR):
    site = Site(module, "mul", "output", Phase.FORWARD, "float16")
    return finding(site, code, severity=severity, message=f"{code} in {module}")


def explained(findings, plan=()):
    """Return the codes that stay, each with those below it."""
    made = clean()
    if plan:
        outcomes = {"settled": Outcome(0, grad_error=1.0), "planned": Outcome(0)}
        made = replace(made, plan=Plan("fp16", plan), outcomes=outcomes)
    return [(f.code, [text[:7] for text in f.follows]) for f in by_cause(made, findings)]


def test_what_one_place_heals_has_one_cause():
    both = [found("AMP501", "a"), found("AMP202", "b")]
    assert explained(both, ("a",)) == [("AMP501", ["AMP202 "])]
    assert explained(both, ("a", "b")) == [("AMP501", []), ("AMP202", [])]
    assert explained(both, ("b",)) == [("AMP501", []), ("AMP202", [])]
    assert explained(both) == [("AMP501", []), ("AMP202", [])]
    assert explained([found("AMP501", "a"), found("AMP202", "a")]) == [("AMP501", ["AMP202 "])]


def test_only_an_error_is_a_cause_and_only_consequences_follow():
    assert explained([found("AMP501", "a", WARNING), found("AMP202", "a", WARNING)]) == [
        ("AMP501", []),
        ("AMP202", []),
    ]
    assert explained([found("AMP103", "a"), found("AMP104", "a", WARNING)], ("a",)) == [
        ("AMP103", []),
        ("AMP104", []),
    ]
    assert explained(
        [found("AMP202", "a"), found("AMP203", "b", WARNING), found("AMP501", "c", WARNING)]
    ) == [("AMP202", ["AMP203 ", "AMP501 "])]


@pytest.mark.parametrize(
    ("line", "placed", "loop"), [(7, 0, True), (7, 9, True), (0, 0, True), (7, 0, False)]
)
def test_gradients_that_are_off_somewhere_follow_from_a_state_that_is_lost_at_a_line(line, placed, loop):
    off, lost = found("AMP501", "a"), found("AMP504", "b")
    off = replace(off, sites=(off.sites[0]._replace(file="f.py", line=placed),))
    lost = replace(lost, sites=(lost.sites[0]._replace(file="f.py", line=line),))
    report = replace(clean(), loop=Loop() if loop else None)
    shown = [(f.code, len(f.follows)) for f in by_cause(report, (off, lost))]
    follows = line and not placed and loop
    assert shown == ([("AMP504", 1)] if follows else [("AMP501", 0), ("AMP504", 0)])
    # where the line is known that writes the state, it comes first whatever else is known
    report = replace(report, updates=(UpdateLoss("b.state", 9, 9, file="f.py", line=line),))
    shown = [(f.code, len(f.follows)) for f in by_cause(report, (off, lost))]
    first = [("AMP504", 0), ("AMP501", 0)] if placed else [("AMP504", 1)]
    assert shown == (first if line and loop else [("AMP501", 0), ("AMP504", 0)])


def test_a_weight_that_an_optimizer_moves_in_vain_comes_before_gradients_that_are_off_elsewhere():
    off, lost = found("AMP501", "a"), found("AMP504", "b")
    off = replace(off, sites=(off.sites[0]._replace(file="f.py", line=9),))
    lost = replace(lost, sites=(Site("b", "", "param[scale]", Phase.STATE, "bfloat16", "f.py", 7),))
    vain = UpdateLoss("b.scale", 9, 9, file="f.py", line=20, stepped=True)
    for loss, first in [
        (vain, "AMP504"),
        (replace(vain, stuck=0, wrong=9), "AMP501"),
        (replace(vain, stepped=False), "AMP501"),
        (replace(vain, name="b.shift"), "AMP501"),
    ]:
        report = replace(clean(), loop=Loop(), updates=(loss,))
        assert by_cause(report, (off, lost))[0].code == first


@pytest.mark.parametrize(("placed", "picked"), [(0, 5), (9, 5), (0, 0)])
def test_wrong_picks_at_a_line_come_before_gradients_that_are_off_at_none(placed, picked):
    off, wrong = found("AMP501", "a"), found("AMP510", "a")
    off, wrong = (
        replace(one, sites=(one.sites[0]._replace(file="f.py", line=line),))
        for one, line in ((off, placed), (wrong, picked))
    )
    first = by_cause(replace(clean(), loop=Loop()), (off, wrong))[0]
    assert first.code == ("AMP510" if picked and not placed else "AMP501")


@pytest.mark.parametrize(
    ("cause", "op", "dtype", "line", "leads"),
    [
        ("AMP504", "_to_copy", "float32", 9, True),  # a cast up makes nothing zero
        ("AMP504", "_to_copy", "float16", 9, False),
        ("AMP421", "div_", "float16", 5, True),
        ("AMP421", "div_", "float16", 9, False),
    ],
)
def test_what_becomes_zero_follows_from_the_state_it_is_read_from_or_from_what_changes_gradients_there(
    cause, op, dtype, line, leads
):
    zero = replace(found("AMP103", "a"), sites=(Site("a", op, "output", Phase.FORWARD, dtype, "f.py", line),))
    first = replace(found(cause, "b"), sites=(Site("b", "", "output", Phase.FORWARD, "float16", "f.py", 5),))
    findings = by_cause(replace(clean(), loop=Loop()), (zero, first))
    below = leads and cause == "AMP421"  # it says the same again
    assert [one.code for one in findings] == (
        [cause, *["AMP103"] * (not below)] if leads else ["AMP103", cause]
    )
    assert [one[:6] for one in findings[0].follows] == ["AMP103"] * below


def test_rounding_in_front_of_a_pole_is_told_once_and_shown_with_what_follows():
    report = zoo("ray_transmittance_product")
    errors = [item for item in report.findings if item.severity is ERROR]
    assert [item.code for item in errors] == ["AMP103"]
    assert [text[:7] for text in errors[0].follows] == ["AMP202 ", "AMP203 "]
    assert from_json(to_json(report)) == report
    assert "└ AMP202" in terminal.render(report)


def test_a_larger_scale_is_tried_before_any_place():
    """A loss of 1e-10: 2^16 is not enough, and FP32 nowhere would be the remedy a person wants."""
    report = zoo("pinn_si_units")
    assert report.outcomes["settled"].harmed
    assert not report.outcomes["rescaled"].harmed
    assert (report.plan.fp32_modules, report.plan.fp32_lines) == ((), ())
    assert report.plan.scaler.init_scale >= 2.0**20
    assert (
        f"a loss scale of 2^{report.outcomes['rescaled'].log2_scale} heals it" in report.findings[0].message
    )


def test_a_smaller_scale_is_tried_where_the_scale_was_given():
    report = zoo("infonce_temperature", log2_scale=16)
    assert report.findings[0].kind == "backward-overflow"
    assert "at loss scale 2^16; a loss scale of" in report.findings[0].message
    assert report.plan.scaler.init_scale <= 2.0**8


def test_the_one_place_that_needs_a_scale_may_do_without():
    case = load(CASES / "control_branch_near_zero.py")
    model, batch = case.model(), case.batch()
    report = check(model, batch, case.loss)
    assert answer(report)[1].startswith("fp16 without a loss scale is not safe")
    assert report.plan.fp32_modules == ("control",)
    assert report.plan.scaler.init_scale >= 2.0**11
    assert {verdict.tried for verdict in report.claims} == {Tried.CONFIRMED}
    assert any("either is enough by itself" in text for text in report.advice)
    again = check(report.plan.apply(model), batch, case.loss)
    assert again.worst is not ERROR  # neither with a scale nor without


@pytest.mark.parametrize("name", ["distillation_without_t_squared", "deep_sigmoids_vanish"])
def test_a_model_that_needs_a_scale_as_a_whole_keeps_no_place_in_fp32(name):
    report = zoo(name)
    assert report.findings[0].code == "AMP204"
    assert report.plan.fp32_modules == ()


def test_the_headline_names_the_scale_that_is_wrong():
    health, sentence = answer(zoo("loss_times_ten_thousand"))
    assert health is Health.UNSAFE
    assert sentence.startswith("fp16 with loss scale 2^16 is not safe")


def test_scripted_parts_run_alike_however_often():
    """TorchScript's optimizer rewrites a graph after its first runs; an audit has to compare several runs."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
            self.last = nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.part(x))

    with warnings.catch_warnings(action="ignore"):  # deprecated, and in use
        model = Model()
    batch = torch.randn(4, 8), torch.randint(2, (4,))
    reports = [
        check(
            model, batch, lambda m, b: functional.cross_entropy(m(b[0]), b[1]), settings=Settings(precision)
        )
        for precision in ("fp16", "bf16", "fp16")
    ]
    assert reports[0].low.sites.keys() == reports[2].low.sites.keys()
    assert reports[0].low.operations == reports[2].low.operations


@pytest.mark.parametrize(
    ("fits", "falls", "line"),
    [(10, False, 7), (10, True, 3), (-1, False, 3)],
)
def test_what_overflows_at_a_constant_scale_is_said_where_that_multiplies_the_loss(
    fits, falls, line, monkeypatch
):
    monkeypatch.setattr(first_places, "fitting", lambda _: [fits])
    monkeypatch.setattr(first_places, "at_any_scale", lambda _: False)
    event = Event(Kind.BACKWARD, file="train.py", line=7, by_hand=True)
    scales = (ScaleEvent(0, "scale by hand", 2.0**14, 2.0**13 if falls else 2.0**14, skipped=True),)
    loop = Loop(((event,),), ((0, 1),), (), scales, {"scale by hand": 2.0**14}, 1)
    report = SimpleNamespace(loop=loop, log2_scale=14)
    bad = [Site("net.9", "mm", "output", Phase.BACKWARD, "float16", "train.py", 3)]
    assert first_places.at_the_scale(report, bad)[0].line == line
