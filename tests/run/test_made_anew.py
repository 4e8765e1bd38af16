"""Models and optimizers that a script makes anew for each task, as meta-learning and federated training do."""

import copy
import gc
import weakref

import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.observe.script import uncalled
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def learn(tasks):
    """Train a copy of a model on each task."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    for _ in range(tasks):
        learner = copy.deepcopy(model)
        optimizer, scaler = torch.optim.SGD(learner.parameters(), 0.1), torch.amp.GradScaler("cuda", 2.0**10)
        for _ in range(2):
            x = torch.randn(16, 8)
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(learner(x).float(), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        with torch.no_grad():
            for kept, learnt in zip(model.parameters(), learner.parameters(), strict=True):
                kept.lerp_(learnt, 0.1)


def watched(train, *given):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        train(*given)
    assert not session.watcher.broken, session.watcher.not_seen
    return session


def test_learners_that_were_not_compared_are_said():
    """Each is a model of its own: what was compared of others says nothing of its numbers."""
    session = watched(learn, 100)
    report, trained = session.report("script.py"), session.watcher.trained
    assert report.verdict.word is not Health.SAFE
    assert "learner.*" in report.verdict.sentence
    of_one = [key for key, (name, _) in trained._names.items() if name == "learner.0.weight"]
    assert trained.elements(others_than=of_one[:8])["learner.0.weight"] == 8 * 16 * (len(of_one) - 8)


def test_what_is_made_anew_is_not_looked_for_in_memory_each_time(monkeypatch):
    looks = []
    listed = uncalled.instances_of
    monkeypatch.setattr(uncalled, "instances_of", lambda kind: looks.append(kind) or listed(kind))
    few = watched(learn, 100).watcher.steps and len(looks)
    watched(learn, 160)
    assert len(looks) - few <= few + 20  # sixty more tasks


def test_a_recorded_step_holds_no_gradients():
    """Without Python's garbage collector, which may come much later than the next allocation on a full card."""
    torch.manual_seed(0)
    gradients, session = [], Session(Schedule(), as_cuda=True)
    gc.collect()
    gc.disable()
    try:
        with session.watching():
            model = nn.Linear(8, 1)
            optimizer, scaler = (
                torch.optim.SGD(model.parameters(), 0.1),
                torch.amp.GradScaler("cuda", 2.0**10),
            )
            for _ in range(60):
                with torch.autocast("cuda", torch.float16):
                    loss = model(torch.randn(16, 8)).float().square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                gradients.append(weakref.ref(model.weight.grad))
                scaler.step(optimizer)
                scaler.update()
    finally:
        gc.enable()
    assert len(session.watcher.tape.recorded) >= 3
    assert sum(one() is not None for one in gradients[:-2]) == 0
