"""Threads that were there before a step and run a part of it: what they compute counts as if one thread had done it."""

import queue
import threading
from copy import deepcopy

import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

STEPS = 6


class Worker(threading.Thread):
    """Runs jobs one after the other, in the mixed precision of its own."""

    def __init__(self):
        super().__init__(daemon=True)
        self.jobs = queue.Queue()
        self.start()

    def run(self):
        while (job := self.jobs.get()) is not None:
            function, args, box, done = job
            try:
                with torch.autocast("cuda", torch.float16):
                    box.append(function(*args))
            finally:
                done.set()

    def __call__(self, function, *args):
        box, done = [], threading.Event()
        self.jobs.put((function, args, box, done))
        done.wait()
        return box[0]


def alone(function, *args):
    with torch.autocast("cuda", torch.float16):
        return function(*args)


def balance(drops):
    """Add up large numbers by a product, and compare neighbours."""
    sums = drops @ torch.ones(8, 8).tril().T
    return (sums.float() - torch.arange(1, 9) * 400.0).diff(dim=1).square().mean()


def head(layer, hidden):
    return layer(hidden).float().square().mean()


def trained(runs, part):
    """Train a stem whose result goes through `part`, which `runs` runs; return the weights."""
    torch.manual_seed(0)
    stem, layer = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = torch.optim.SGD([*stem.parameters(), *layer.parameters()], 1e-3)
    scaler = torch.amp.GradScaler("cuda", 1024.0)
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            hidden = stem(x)
        loss = runs(head, layer, hidden) if part is head else runs(balance, 400.0 + hidden.float())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [one.detach().clone() for one in (*stem.parameters(), *layer.parameters())]


def watched(part, worker):
    session, held = Session(Schedule(), as_cuda=True), []
    session.watcher.thread.follows = True  # as `ampcheck run` lets it
    with session.watching():
        runs = worker()
        held += trained(runs, part)
        if isinstance(runs, Worker):
            runs.jobs.put(None)
            runs.join()
    assert not session.watcher.broken, session.watcher.not_seen
    return held, session.report("script.py")


def test_what_an_older_thread_computes_is_judged_as_if_one_thread_had_done_it():
    weights, report = watched(balance, Worker)
    same, of_one = watched(balance, lambda: alone)
    assert all(map(torch.equal, weights, same))
    for each in (report, of_one):
        errors = [(one.code, one.origin.line) for one in each.findings if one.severity is Severity.ERROR]
        assert errors == [("AMP501", line_of(balance, "@"))]
    known = operations(of_one, balance)
    assert known
    assert known - operations(report, balance) <= {one for one in known if one[0] in {"ones", "tril"}}


def test_a_layer_that_an_older_thread_calls_is_never_safe():
    """Its weights are cast before anything tells that they are part of the step."""
    weights, report = watched(head, Worker)
    same, of_one = watched(head, lambda: alone)
    assert all(map(torch.equal, weights, same))
    assert (report.verdict.word, of_one.verdict.word) == (Health.PARTLY_AUDITED, Health.SAFE)


def operations(report, part):
    """Return what was recorded at the lines of a function."""
    first, last = line_of(part, "def"), line_of(part, "return")
    lines = range(first, last + 1)
    return {
        (one.op, one.phase, one.dtype, one.line) for one in report.low.sites if one.op and one.line in lines
    }


def test_a_thread_that_trains_a_model_of_its_own_trains_as_it_does_alone():
    held, calls, begun, first = {}, [], threading.Event(), nn.Linear(4, 4)

    def other():
        draws, model = torch.Generator().manual_seed(0), deepcopy(first)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(200):
            optimizer.zero_grad()
            torch.sinh(model(torch.randn(2, 4, generator=draws))).square().mean().backward()
            optimizer.step()
            begun.set()
        held["after"] = model.weight.detach().clone()

    def beside(function, *args):
        calls.append(function)
        if len(calls) == 2:
            held["thread"] = threading.Thread(target=other)
            held["thread"].start()
            begun.wait()
        if len(calls) == STEPS:
            held["thread"].join()
        return alone(function, *args)

    weights, _ = watched(head, lambda: beside)
    after = held.pop("after")
    same, _ = watched(head, lambda: alone)
    assert all(map(torch.equal, weights, same))
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        other()
    assert torch.equal(held["after"], after)
