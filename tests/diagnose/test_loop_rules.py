"""Rules of training loops: the tutorial's loops are clean, and each mistake is found at its line."""

import contextlib
import functools
import inspect
import math
import re
import runpy
import types
import warnings
from dataclasses import replace
from pathlib import Path

import loop_cases
import loop_idioms
import loop_scripts
import pytest
import torch
from loop_cases import CASES
from loop_scripts import TUTORIALS, resumed

from ampcheck.diagnose.rules import RULES, diagnose
from ampcheck.diagnose.rules.loop_scale import scale_collapse
from ampcheck.run.session import Session
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule

#: Those of the order of a loop, and those of its scale and its dtypes that a loop gives a line.
LOOP_RULES = {code: rule for code, rule in RULES.items() if code.startswith("AMP4")}
PLACED = ("AMP205", "AMP206", "AMP302")
SOURCES = {
    module.__name__: inspect.getsource(module).splitlines()
    for module in (loop_cases, loop_idioms, loop_scripts)
}


#: What torch says of loops that it sees to be wrong.
RAISED = (RuntimeError, AssertionError, ValueError)


def watched(train, *, as_cuda=True, **schedule):
    """Return the report of a loop that ends as it likes."""
    session = Session(Schedule(**{"first": 1, "every": 2} | schedule), as_cuda=as_cuda)
    with warnings.catch_warnings(), session.watching(), contextlib.suppress(*RAISED):
        warnings.simplefilter("ignore")
        train()
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("loop")


def found(report):
    return {finding.code: finding for rule in LOOP_RULES.values() for finding in rule(report)}


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_tutorials_loops_are_clean(name):
    report = watched(TUTORIALS[name])
    assert report.loop.steps >= 2
    assert not found(report)
    assert report.worst is not Severity.ERROR


def test_a_resumed_loop_is_clean(tmp_path):
    report = watched(lambda: resumed(tmp_path / "checkpoint.pt"))
    assert report.loop.steps == 4
    assert not found(report)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loops")
    return {name: watched(lambda case=case: case.wrong(folder / "model.pt")) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_each_mistake_is_found_at_its_line_with_the_lines_that_mend_it(reports, name):
    case, code = CASES[name], name.split()[0]
    finding = {one.code: one for one in reports[name].findings}[code]
    source = SOURCES[finding.origin.file.rpartition("/")[2].removesuffix(".py")]
    assert case.line in source[finding.origin.line - 1]
    assert case.fix in "\n".join(finding.fix)
    assert code in PLACED or finding.kind == "training-loop"


@pytest.mark.parametrize("name", CASES)
def test_of_the_corrected_loop_the_rule_says_nothing(name, tmp_path):
    report = watched(lambda: CASES[name].right(tmp_path / "model.pt"))
    assert report.loop.steps >= 2
    assert not [finding for finding in report.findings if finding.code == name.split()[0]]
    assert report.worst is not Severity.ERROR


def test_the_lines_around_a_clipping_are_written_out(reports):
    finding = found(reports["AMP401"])["AMP401"]
    assert finding.fix == (
        "(scaler.scale(loss) if scaled else loss).backward()",
        "scaler.unscale_(optimizer)  # before clipping",
        "clip_grad_norm_(model.parameters(), 1.0)",
        "scaler.step(optimizer)",
    )


def test_half_weights_at_which_a_scaler_ended_the_script_are_an_error(reports):
    finding = next(one for one in reports["AMP302"].findings if one.code == "AMP302")
    assert finding.severity is Severity.ERROR
    assert "the script ended there" in finding.message
    unscaled = watched(lambda: loop_cases.stored(True, scaled=False))
    assert [str(one.severity) for one in unscaled.findings if one.code == "AMP302"] != ["error"]


def test_every_rule_of_loops_has_a_case():
    # AMP410 has its own test below, AMP415 is about ranks and has test_ranks.
    assert {name.split()[0] for name in CASES} == set(LOOP_RULES) - {"AMP410", "AMP415"} | set(PLACED)


def test_a_scaler_that_torch_switched_off_is_told_of():
    report = watched(lambda: torch.amp.GradScaler("cuda"), as_cuda=False)
    assert set(found(report)) == {"AMP410"}


def trains_on_the_cpu_as_if_on_cuda(half=loop_scripts.half):
    model = torch.nn.Linear(4, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for _ in range(4):
        optimizer.zero_grad()
        with half():
            loss = model(torch.ones(3, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def test_a_region_that_torch_switched_off_is_told_of_and_is_not_called_one_around_the_loss_alone():
    report = watched(trains_on_the_cpu_as_if_on_cuda, as_cuda=False)
    assert {code: str(finding.severity) for code, finding in found(report).items()} == {"AMP410": "warning"}
    told = [finding.message for finding in LOOP_RULES["AMP410"](report)]
    assert any("autocast in float16 on cuda" in message for message in told), told
    assert not found(watched(trains_on_the_cpu_as_if_on_cuda))
    off = functools.partial(trains_on_the_cpu_as_if_on_cuda, lambda: torch.autocast("cuda", enabled=False))
    assert not any("autocast" in f.message for f in LOOP_RULES["AMP410"](watched(off, as_cuda=False)))


@pytest.mark.parametrize("name", CASES)
def test_the_same_findings_follow_from_a_saved_report(reports, name):
    report = reports[name]
    again = from_json(to_json(report))
    assert again.loop == report.loop
    assert diagnose(again) == report.findings


def test_fixes_and_messages_hold_one_line_each(reports):
    for report in reports.values():
        for finding in found(report).values():
            assert all("\n" not in line for line in finding.fix)
            assert re.fullmatch(r"[^\n]+", finding.message)


def large(steps, factor=2.0**22):
    """Train on a loss so large that no scale from 1 on holds its gradients, and smaller ones do."""

    def train():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2).cuda()
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-12), torch.amp.GradScaler("cuda")
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.ones(3, 4).cuda()).float().square().mean() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return train


def test_a_scale_that_comes_to_rest_below_one_has_not_collapsed():
    resting = watched(large(60))
    assert min(event.after for event in resting.loop.scales) < 1
    assert resting.loop.steps - resting.loop.skipped > resting.loop.skipped > 16
    assert not scale_collapse(resting)
    assert [f.code for f in scale_collapse(watched(large(20)))] == ["AMP206"]  # still on its way down


def overflows_above(limit, interval, steps=60):
    """Train at a scale that grows every so many steps, on a gradient that overflows above a limit."""

    def train():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 1e-12)
        scaler = torch.amp.GradScaler("cuda", init_scale=limit, growth_interval=interval)
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.ones(3, 4).cuda()).float().mean() * (120000 / limit)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return train


@pytest.mark.parametrize(("interval", "said"), [(1, ["error"]), (5, ["warning"]), (30, [])])
def test_a_scale_that_grows_into_the_next_overflow_again_and_again(interval, said):
    """Of each interval and the one step behind it, that step is skipped."""
    report = watched(overflows_above(2.0**12, interval))
    assert report.loop.skipped == sum(at % (interval + 1) == interval for at in range(60))
    found = scale_collapse(report)
    assert [finding.severity.value for finding in found] == said
    assert all("of 6" in finding.message or "of 5" in finding.message for finding in found)


def test_what_a_step_past_the_scaler_leaves_is_no_overflow_at_every_scale():
    """Infinite gradients are stepped at 2^16, and the weights are no numbers from then on; 2^15 would have done."""
    file = Path(__file__).parents[1] / "people" / "files" / "gan" / "sn_hinge.py"

    def trains():
        torch.manual_seed(0)
        trainer = runpy.run_path(str(file))["Trainer"](types.SimpleNamespace(epochs=1, lr=2e-4))
        for _ in range(2):
            trainer.step(torch.rand(16, 3, 16, 16) * 2 - 1)

    found = {finding.code: finding for finding in watched(trains, beside="all").findings}
    assert found["AMP403"].severity is Severity.ERROR
    assert found["AMP202"].severity is Severity.WARNING
    assert "at loss scale 2^16; 2^15 is the largest that is predicted to fit" in found["AMP202"].message


@pytest.mark.parametrize("spoilt", [True, False])
def test_a_scale_that_collapses_is_said_of_the_last_of_several_scalers_too(spoilt):
    report = watched(lambda: loop_cases.scalers_of_epochs(spoilt))
    collapses = [one for one in scale_collapse(report) if one.severity is Severity.ERROR]
    assert bool(collapses) is spoilt, report.loop.scales
    assert "AMP417" in found(report)


@pytest.mark.parametrize("loss", [1.0, math.inf])
def test_a_schedule_by_inf_is_no_finding_of_its_own_where_the_losses_are(loss):
    report = watched(lambda: loop_cases.goes_by_a_sum(half_sum=True))
    steps = tuple(replace(step, loss=loss) for step in report.low.steps)
    report = replace(report, low=replace(report.low, steps=steps))
    assert ("AMP422" in found(report)) is math.isfinite(loss)
