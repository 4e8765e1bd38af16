"""Loops that are not forward, backward, step: closures, no optimizer, none seen because a child process trains."""

import pytest
import torch
from builders import answer, sentence_of
from torch import nn

from ampcheck.diagnose.rules.gradients import MANY_SKIPS
from ampcheck.observe.script import tape
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.loop import Kind
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


X, Y = torch.linspace(-1, 1, 32).reshape(8, 4), torch.linspace(0, 1, 8).reshape(8, 1)


def fitted(steps=3, history=None):
    """Fit by LBFGS; return the losses of every evaluation, and put what the first one is made of in `history`."""
    model, seen = net(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), Y)
        loss.backward()
        seen.append(loss.item())
        if history is not None and not history:
            history.extend(parameter.grad.clone() for parameter in model.parameters())
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return seen


def test_a_closure_that_is_asked_again_is_recorded_once_a_step_with_its_gradients():
    bare = fitted()
    session, gradients = Session(Schedule(first=2, every=0)), []
    with session.watching():
        assert fitted(history=gradients) == bare
    report = session.report("fit.py")
    assert (report.loop.steps, report.loop.recorded) == (3, (0, 1))
    first = session.watcher.tape.recorded[0]
    assert first.losses[0] == torch.tensor(bare[0]).item()
    assert first.low.steps[0].loss == bare[0]
    measured = {
        s.slot: v
        for s, v in first.low.sites.items()
        if s.slot.startswith("param_grad") and s.module == "model.0"
    }
    assert measured["param_grad[weight]"].amax == gradients[0].abs().max().item()
    assert measured["param_grad[weight]"].numel == gradients[0].numel()
    assert not [finding for finding in report.findings if finding.severity != "info"]


def test_a_step_that_is_too_long_is_given_up_and_so_are_all_after_two(monkeypatch):
    monkeypatch.setattr(tape, "MOST_OPERATIONS", 10)
    bare = fitted(5)
    session = Session(Schedule(first=5, every=0))
    model, optimizer = net(), None
    with session.watching():
        assert fitted(5) == bare
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            sum(model(X).sum() for _ in range(9)).backward()
            optimizer.step()
    report = session.report("long.py")
    (text,) = (text for text in report.low.not_audited if "too long" in text)
    assert report.low.not_audited[text] == tape.MOST_GIVEN_UP


def test_where_no_step_could_be_recorded_that_is_the_verdict(monkeypatch):
    monkeypatch.setattr(tape, "MOST_OPERATIONS", 1)
    session = Session(Schedule(first=5, every=0))
    with session.watching():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            (model(X) + model(X)).sum().backward()
            optimizer.step()
    assert sentence_of(session.report("long.py")).startswith("no step was recorded, so nothing was judged")


def test_modules_missed_in_every_step_are_counted_once():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare, self.empty = nn.Linear(4, 1), nn.Softmax(1), nn.Sequential()

        def forward(self, x):
            return self.used(x)

    session = Session(Schedule(first=3, every=0))
    with session.watching():
        model = Part()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(X).sum().backward()
            optimizer.step()
    assert session.report("part.py").low.not_audited == {"modules that were never called: model.spare": 1}


# A scaler that looks for its scale


def scaled(steps, gain=1.0, init_scale=2.0**16, schedule=False):
    """Train in fp16 a model whose gradients are as large as `gain` makes them."""
    model = net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3 / gain)
    scaler = torch.amp.GradScaler("cuda", init_scale=init_scale)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = (model(X.cuda()).float() * gain).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if schedule and step % 5 == 4:
            scheduler.step()


def watched(train, first=9):
    session = Session(Schedule(first=first, every=0), as_cuda=True)
    with session.watching():
        train()
    return session.report("train.py")


def worst(report):
    return sorted({finding.code for finding in report.findings if finding.severity != "info"})


def test_a_scale_that_is_still_looked_for_is_no_error():
    report = watched(lambda: scaled(2, gain=32.0))
    assert [event.skipped for event in report.loop.scales] == [True, True]
    assert worst(report) == []
    health, text = answer(report)
    assert (health, "skipped" in text) == (Health.UNKNOWN, True)  # nothing was trained yet


def test_a_scale_that_was_found_is_judged_by_the_steps_that_ran_at_it():
    report = watched(lambda: scaled(6, gain=4.0))
    skipped = sum(event.skipped for event in report.loop.scales)
    assert 0 < skipped < MANY_SKIPS
    assert report.log2_scale == 16 - skipped
    assert worst(report) == []
    assert answer(report)[0] is Health.SAFE


def test_a_step_that_is_skipped_after_the_scale_has_grown_says_nothing_about_the_others():
    def train():
        model = net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**13, growth_interval=3, growth_factor=2.0**6)
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = (model(X.cuda()).float() * 4).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    report = watched(train)
    assert [(event.step, event.skipped) for event in report.loop.scales] == [(2, False), (3, True)]
    assert (report.log2_scale, worst(report)) == (13, [])


def test_a_scale_that_is_never_found_is_an_error():
    report = watched(lambda: scaled(MANY_SKIPS + 2, gain=2.0**12))
    assert all(event.skipped for event in report.loop.scales)
    assert "AMP202" in worst(report)
    assert answer(report)[0] is Health.UNSAFE


def adversaries(steps):
    """Train two models in turn with one scaler, whose first scale is far too large."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 4).cuda(), net().cuda()
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for model in (maker, judge)]
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**21)
    for _ in range(steps):
        for optimizer, sign in zip(optimizers, (-1.0, 1.0), strict=True):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = sign * (judge(maker(X.cuda()) - 3.0 + sign).float() * 8).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        scaler.update()


def test_two_optimizers_are_judged_at_the_scale_that_was_found_after_many_skips():
    report = watched(lambda: adversaries(24))
    skipped = sum(event.after < event.before for event in report.loop.scales)
    assert skipped > MANY_SKIPS
    assert report.log2_scale == 21 - skipped
    assert [finding.code for finding in report.findings if finding.severity is not Severity.INFO] == []
    assert answer(report)[0] is Health.SAFE


def test_making_a_schedule_is_no_step_of_it():
    report = watched(lambda: scaled(6, gain=4.0, schedule=True))
    assert any(event.skipped for event in report.loop.scales)
    assert [event.kind for _, event in report.loop.sequence(9)].count(Kind.SCHEDULE) == 1
    assert worst(report) == []


# What cannot be proved beside a script, and what runs in another precision than the one asked for


def test_an_error_that_no_operation_explains_is_told_and_not_charged():
    def train():
        torch.manual_seed(0)
        layers = [part for _ in range(12) for part in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(16, 1)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(4, 16).cuda()
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()

    report = watched(train)
    assert report.outcomes["settled"].error > HARM_ERROR
    assert worst(report) == []
    assert answer(report)[0] is Health.RISK
    (finding,) = (finding for finding in report.findings if finding.code == "AMP501")
    assert "rounding only the FP32 weights moves the gradient" in finding.message


def test_an_lstm_that_cudnn_runs_in_fp16_leaves_the_step_in_bf16():
    model, optimizer = nn.LSTM(4, 8, batch_first=True), None
    session = Session(Schedule(first=1, every=0), as_cuda=True, what_if="bf16")
    with session.watching():
        head = nn.Linear(8, 1)
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            head(model(X.reshape(2, 4, 4))[0]).mean().backward()
            optimizer.step()
    report = session.report("lstm.py")
    forward = [site for site in report.low.sites if site.op and site.phase is Phase.FORWARD]
    assert report.precision == "bf16"
    assert {site.dtype for site in forward if site.module == "head"} == {"bfloat16"}
    assert "float16" in {site.dtype for site in forward if site.module == "model"}


def by_name(steps):
    session = Session(Schedule(first=2, every=0))
    with session.watching():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            (model[0].weight @ X.T).sum().backward()
            optimizer.step()
    return session.report("by_name.py")


def test_a_single_step_that_calls_no_module_is_counted_and_the_verdict_says_so():
    report = by_name(1)
    (text,) = report.low.not_audited
    assert ("in which no module was seen to be called" in text, report.low.not_audited[text]) == (True, 1)
    assert answer(report)[0] is Health.UNKNOWN


def test_of_several_steps_that_call_no_module_those_after_the_first_are_recorded():
    report = by_name(3)
    assert report.loop.recorded == (1,)
    assert {site.module for site in report.low.sites if site.slot == "param_grad[weight]"} == {"model.0"}


def test_an_attribute_names_a_model_better_than_a_loop():
    class Trainer:
        def __init__(self):
            self.network = net()
            self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)

        def step(self):
            for m in self.network.children():
                assert m is not self.network
            m = self.network
            m(X).sum().backward()
            self.optimizer.step()

    session = Session(Schedule(first=1, every=0))
    with session.watching():
        Trainer().step()
    assert {info.path.partition(".")[0] for info in session.report("t.py").low.modules} <= {"network", ""}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_loss_that_is_not_scaled_beside_one_that_is_has_gradients_without_the_scale(scaled, late):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model, weight = net(), torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        own, scaler = torch.optim.Adam([weight], 0.01), torch.amp.GradScaler("cuda", init_scale=2.0**8)
        for _ in range(4):
            optimizer.zero_grad()
            if not late:
                own.zero_grad()
            with torch.autocast("cuda", torch.float16):
                out = model(X)
                loss = nn.functional.mse_loss(out.float(), Y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if late:
                own.zero_grad()
            other = (weight.exp() * (2 - out.detach().float())).mean()
            (scaler.scale(other) if scaled else other).backward()
            own.step()
    report = session.report("script.py")
    codes = {finding.code for finding in report.findings if finding.severity is Severity.ERROR}
    assert codes == ({"AMP403"} if scaled else set())
    assert report.outcomes["settled"].grad_error < 0.01
