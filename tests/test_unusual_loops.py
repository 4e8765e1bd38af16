"""Loops that are not forward, backward, step: closures, no optimizer, none seen because a child process trains."""

import torch
from torch import nn

from ampcheck.headline import verdict
from ampcheck.observe.script import recording, tape
from ampcheck.script import Session
from ampcheck.settings import Schedule


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
    measured = {s.slot: v for s, v in first.low.sites.items() if s.slot.startswith("param_grad") and s.module == "model.0"}
    assert measured["param_grad[weight]"].amax == gradients[0].abs().max().item()
    assert measured["param_grad[weight]"].numel == gradients[0].numel()
    assert not [finding for finding in report.findings if finding.severity != "info"]


def test_a_step_that_is_too_long_is_given_up_and_so_are_all_after_two(monkeypatch):
    monkeypatch.setattr(recording, "MOST_OPERATIONS", 10)
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
    monkeypatch.setattr(recording, "MOST_OPERATIONS", 1)
    session = Session(Schedule(first=5, every=0))
    with session.watching():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            (model(X) + model(X)).sum().backward()
            optimizer.step()
    assert verdict(session.report("long.py")) == "nothing can be said: none of 3 steps was recorded in full"


def test_modules_missed_in_every_step_are_counted_once():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(4, 1), nn.Softmax(1)

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
