"""Mistakes of training loops are found however the loop is written, and nothing is said where there are none."""

import contextlib
import functools
import inspect
import warnings

import loop_idioms
import pytest
import torch
from builders import sentence_of
from loop_idioms import CLEAN, IDIOMS, folds
from loop_scripts import data, half, net
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ampcheck.diagnose.rules import diagnose
from ampcheck.renderers.scale_curve import span_words
from ampcheck.run.session import Session
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.findings import Severity
from ampcheck.values.loop import Event, Kind, Loop, ScaleEvent
from ampcheck.values.settings import Schedule

SOURCE = inspect.getsource(loop_idioms).splitlines()
#: What torch says of loops that it sees to be wrong.
RAISED = (RuntimeError, AssertionError, ValueError)


def watched(train, *, as_cuda=True, told=lambda _: None):
    session = Session(Schedule(first=1, every=2), told, as_cuda=as_cuda)
    with warnings.catch_warnings(), session.watching(), contextlib.suppress(*RAISED):
        warnings.simplefilter("ignore")
        train()
    assert not _get_current_dispatch_mode_stack()
    return session.report("loop"), session.watcher


def name(idiom):
    train = idiom.train if hasattr(idiom, "train") else idiom
    return getattr(train, "__name__", "") or f"{train.func.__name__} {train.keywords}"


@pytest.mark.parametrize("idiom", IDIOMS, ids=name)
def test_a_mistake_is_found_at_its_line(idiom):
    report, watcher = watched(functools.partial(idiom.train, True))  # wrong
    assert not watcher.broken, watcher.not_seen
    finding = {one.code: one for one in report.findings}[idiom.code]
    assert idiom.line in SOURCE[finding.origin.line - 1]
    assert diagnose(from_json(to_json(report))) == report.findings


def test_gradients_that_grow_further_are_not_to_be_unscaled_yet():
    report, _ = watched(functools.partial(loop_idioms.logs_a_part, True))
    (finding,) = (one for one in report.findings if one.code == "AMP416")
    assert "scaler.get_scale()" in finding.fix[-1]
    assert not any("unscale_" in line for line in finding.fix)
    report, _ = watched(functools.partial(loop_idioms.unscales_every_part, True))
    messages = [one.message for one in report.findings if one.code == "AMP404"]
    assert [" ".join(message.split()[:2]) for message in messages] == ["unscale_ is", "a backward"]


def test_gradients_of_a_scaled_loss_are_divided_in_the_words_of_the_script():
    report, _ = watched(functools.partial(loop_idioms.penalises_slopes, True))
    (finding,) = (one for one in report.findings if one.code == "AMP416")
    assert finding.fix[-1] == "slope = slope / scaler.get_scale()"


@pytest.mark.parametrize("idiom", IDIOMS, ids=name)
def test_without_the_mistake_nothing_is_said_of_the_loop(idiom):
    report, watcher = watched(functools.partial(idiom.train, False))  # not wrong
    assert not watcher.broken, watcher.not_seen
    assert report.loop.steps >= 2
    assert report.loop.recorded
    assert not [finding for finding in report.findings if finding.code.startswith("AMP4")]
    assert report.worst is not Severity.ERROR


@pytest.mark.parametrize("train", CLEAN, ids=name)
def test_of_loops_that_are_right_nothing_is_said(train):
    report, watcher = watched(train)
    assert not watcher.broken, watcher.not_seen
    assert report.loop.recorded
    assert not report.findings


def scheduled(steps=6):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, schedule = torch.amp.GradScaler("cuda"), torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for x, y in data(steps):
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("when", range(4))
def test_a_watch_that_fails_in_any_step_leaves_the_loop_alone(when):
    def fail(watcher):
        if watcher.steps > when:
            raise LookupError("told too much")

    ends = []
    calm, _ = watched(lambda: ends.append(scheduled()))
    report, watcher = watched(lambda: ends.append(scheduled()), told=fail)
    assert watcher.broken
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert calm.loop.steps == 6
    assert report.loop.steps == when + 1
    assert any("LookupError: told too much" in what for what in report.low.not_audited)


def test_a_watch_that_fails_before_the_first_step_does_not_say_that_nothing_trained():
    def fail(watcher):
        watcher.steps -= 1  # as if this had come before
        raise LookupError(watcher.steps)

    session = Session(Schedule(steps=frozenset()), fail, as_cuda=True)
    with session.watching():
        scheduled(2)
    assert session.watcher.broken
    assert "an internal error of ampcheck" in sentence_of(session.report("loop"))


def test_a_scaler_made_anew_is_counted():
    report, _ = watched(functools.partial(folds, True))
    finding = next(one for one in report.findings if one.code == "AMP417")
    assert finding.numbers == {"scalers": 3, "skipped": 0}
    assert finding.severity is Severity.WARNING
    assert len(report.loop.first_scales) == 3


@pytest.mark.parametrize(("epochs", "severity"), [(6, Severity.ERROR), (2, Severity.WARNING)])
def test_scalers_made_anew_that_skip_most_steps_are_an_error(epochs, severity):
    """The first comes down by itself; what the others skip is lost to their line."""
    torch.manual_seed(0)
    session, skipped = Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-9)
        for _ in range(epochs):
            scaler = torch.amp.GradScaler("cuda")
            for _ in range(8 if epochs > 2 else 24):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = (model(torch.ones(4, 8)).float() * 30).square().sum()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                before = scaler.get_scale()
                scaler.update()
                skipped += scaler.get_scale() < before
    report = session.report("loop")
    finding = next(one for one in report.findings if one.code == "AMP417")
    assert finding.severity is severity
    assert (
        0
        < finding.numbers["skipped"]
        < skipped
        == len(report.loop.skips("scaler 1")) + finding.numbers["skipped"]
    )
    assert (finding.numbers["skipped"] > report.loop.steps / 4) is (severity is Severity.ERROR)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_corrected_lines_name_the_device_of_the_loop(device):
    def train():
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=4.0)
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                apart = model(torch.ones(4, 8)) * 0
                loss = (apart * apart + 1e-8).sqrt().sum()  # no slope at zero, where fp16 loses 1e-8
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    report, _ = watched(train, as_cuda=device == "cuda")
    fix = next(one.fix for one in report.findings if one.code == "AMP206")
    assert fix[0] == "with torch.autocast(device, enabled=False):"  # as the script writes it


def test_two_scalers_in_turn_settle_each_by_its_own_steps():
    def train():
        a, b = net(), net()
        first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
        scalers = [torch.amp.GradScaler("cuda", init_scale=2.0**k) for k in (40, 16)]
        for x, y in data(40):
            for model, optimizer, scaler in zip((a, b), (first, second), scalers, strict=True):
                optimizer.zero_grad()
                with half():
                    loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

    report, _ = watched(train)
    loop = report.loop
    assert loop.updates("scaler 1") == list(range(0, 80, 2))
    assert loop.updates("scaler 2") == list(range(1, 80, 2))
    searched, skips = loop.settled("scaler 1"), loop.skips("scaler 1")
    assert {event.scaler for event in loop.scales} == {"scaler 1"}
    assert skips[:searched] == list(range(searched))
    assert searched > 15
    assert searched not in skips
    assert loop.settled("scaler 2") == 0
    assert loop.update_of(3) == ("scaler 2", 1)


def scale_events(*skipped):
    return tuple(
        ScaleEvent(step, "scaler 1", 2.0 ** (16 - at), 2.0 ** (15 - at), skipped=True)
        for at, step in enumerate(skipped)
    )


@pytest.mark.parametrize(
    ("steps", "skipped", "words"),
    [
        (4, (), "2^16 throughout"),
        (4, (0, 1), "2^16 → 2^14, settled after 2 steps"),
        (2, (1,), "2^16 → 2^15, not settled: its last step was skipped"),
        (4, (1,), "2^16 → 2^15, settled from the start, 1 skipped later"),
        (6, (0, 3), "2^16 → 2^14, settled after 1 step, 1 skipped later"),
        (2, (0, 1), "2^16 → 2^14, never settled"),
    ],
)
def test_the_words_for_a_scale_say_when_it_skipped(steps, skipped, words):
    events = (Event(Kind.SCALER_STEP, "scaler 1"), Event(Kind.UPDATE, "scaler 1"))
    loop = Loop((events,), ((0, steps),), (), scale_events(*skipped), {"scaler 1": 2.0**16}, steps)
    last = 2.0 ** (16 - len(skipped))
    assert span_words(loop, "scaler 1", 2.0**16, last) == words


def stepped_within(scaled):
    """Return the watch of a loop whose optimizers, one a parameter, step as soon as a gradient is there."""

    def train():
        model, scaler = net(), torch.amp.GradScaler("cuda", enabled=scaled)
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        for p, optimizer in optimizers.items():
            p.register_post_accumulate_grad_hook(lambda p, optimizer=optimizer: optimizer.step())
        for x, y in data(6):
            model.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16 if scaled else torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()

    return watched(train)


def test_steps_within_a_backward_are_one_step():
    report, watcher = stepped_within(scaled=False)
    assert not watcher.broken, watcher.not_seen
    assert report.loop.steps == 6
    assert report.loop.recorded == (0,)
    gradients = {site.slot for site in report.low.sites if site.slot.startswith("param_grad")}
    assert len(gradients) == 2  # of weights and of biases
    assert report.outcomes["settled"].grad_error < 0.05
    assert not report.findings


def test_scaled_gradients_that_are_stepped_within_the_backward_are_found():
    report, _ = stepped_within(scaled=True)
    assert [one.code for one in report.findings if one.severity == "error"] == ["AMP403"]


@pytest.mark.parametrize("direct", [False, True])
def test_the_lines_to_write_are_about_the_optimizer_that_was_left_out(direct):
    def train():
        body, head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        first = torch.optim.SGD(body.parameters(), lr=0.1)
        second = torch.optim.SGD(head.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
        for x, y in data(3):
            first.zero_grad()
            second.zero_grad()
            with half():
                loss = F.cross_entropy(head(body(x)), y)
            scaler.scale(loss).backward()
            if direct:
                scaler.step(first)
                second.step()
            else:
                scaler.unscale_(first)
                torch.nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], 1.0)
                scaler.step(first)
                scaler.step(second)
            scaler.update()

    report, _ = watched(train)
    (finding,) = (one for one in report.findings if one.severity is Severity.ERROR)
    code, line = ("AMP403", "scaler.step(second)") if direct else ("AMP401", "scaler.unscale_(second)")
    assert finding.code == code
    assert line in "\n".join(finding.fix)
    kept = [
        line for line in finding.fix if "unscale_(first)" in line
    ]  # the script's own line: it stays as it is
    assert kept == ([] if direct else ["scaler.unscale_(first)"])


def test_the_mistake_of_a_loop_without_a_module_is_its_verdict():
    def train():
        w = torch.randn(8, 4, requires_grad=True)  # no module anywhere
        optimizer, scaler = torch.optim.SGD([w], lr=0.1), torch.amp.GradScaler("cuda")
        for x, y in data(3):
            optimizer.zero_grad()
            with half():
                loss = F.cross_entropy(x @ w, y)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_([w], 1.0)
            scaler.step(optimizer)
            scaler.update()

    report, _ = watched(train)
    assert "limits gradients that are still multiplied" in sentence_of(report)
    assert report.loop.recorded


def test_a_backward_through_a_graph_that_is_gone_is_torchs_to_refuse():
    def train():
        model = net()
        loss = F.cross_entropy(model(next(data())[0]), next(data())[1]) * 64.0
        loss.backward()
        loss.backward()

    with (
        pytest.raises(RuntimeError, match="second time"),
        Session(Schedule(), as_cuda=True).watching() as watcher,
    ):
        train()
    assert not watcher.broken, watcher.not_seen
