"""Weights that a script changes by hand with what autograd.grad returns, in its own thread and in several."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROUNDS, RATE = 120, 4e-3


class Store:
    """Weights that models are filled from, and the same in float64."""

    def __init__(self, model, dtype):
        self.values = [p.detach().to(dtype) for p in model.parameters()]
        self.exact = [value.double() for value in self.values]
        self.lock = threading.Lock()

    def pull(self, model):
        with self.lock, torch.no_grad():
            for p, value in zip(model.parameters(), self.values, strict=True):
                p.copy_(value)

    def push(self, grads):
        with self.lock:
            for value, exact, grad in zip(self.values, self.exact, grads, strict=True):
                value.add_((-RATE * grad).to(value.dtype))
                exact.add_(grad.double(), alpha=-RATE)

    @property
    def off(self):
        pairs = list(zip(self.values, self.exact, strict=True))
        return max(float((value.double() - exact).norm() / exact.norm()) for value, exact in pairs)


def built():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 6))


def trains(model, store, generator, meet=lambda: None):
    templates = torch.linspace(-1, 1, 120).view(6, 20)
    for _ in range(ROUNDS):
        store.pull(model)
        y = torch.randint(0, 6, (16,), generator=generator)
        x = templates[y] + torch.randn(16, 20, generator=generator)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        meet()
        store.push(grads)
        meet()


def in_threads(models, store):
    meeting = threading.Barrier(len(models))
    works = [
        threading.Thread(target=trains, args=(m, store, torch.Generator().manual_seed(at), meeting.wait))
        for at, m in enumerate(models)
    ]
    for work in works:
        work.start()
    for work in works:
        work.join()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_added_to_a_store_in_half_precision_is_judged(threads, dtype):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    session.watcher.thread.follows = True  # as `ampcheck run` lets it
    with session.watching():
        models = [built() for _ in range(threads)]
        store = Store(models[0], dtype)
        if threads == 1:
            trains(models[0], store, torch.Generator().manual_seed(0))
        else:
            in_threads(models, store)
        store.pull(models[0])
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            models[0](torch.randn(64, 20))
    assert not session.watcher.broken, session.watcher.not_seen
    report = session.report("script.py")
    errors = {one.code for one in report.findings if one.severity is Severity.ERROR}
    lost = dtype is torch.bfloat16
    assert errors == ({"AMP504"} if lost else set()), report.verdict.sentence
    assert report.verdict.word is not Health.SAFE or (threads == 1 and not lost)
    assert (store.off > 1e-3) is lost
