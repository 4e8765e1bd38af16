"""Threads that run a part of a recorded step: what they compute is recorded as if one thread had done it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.observe import lanes
from ampcheck.observe.lanes import after_sources
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.threads import THREADS
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site
from ampcheck.values.verdict import Health


class Cube(nn.Module):
    def forward(self, x):
        return (x * x * x).mean(1, keepdim=True)


def one_after_the_other(jobs):
    return [job() for job in jobs]


def threads(jobs):
    found = [None] * len(jobs)
    running = [
        threading.Thread(target=lambda at=at, job=job: found.__setitem__(at, job()))
        for at, job in enumerate(jobs)
    ]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return found


def pool(jobs):
    with ThreadPoolExecutor(2) as held:
        return [one.result() for one in [held.submit(job) for job in jobs]]


def turns(jobs):
    with ThreadPoolExecutor(1) as held:
        return [held.submit(job).result() for job in reversed(jobs)][::-1]


class Towers(nn.Module):
    """Two towers over one stem, each of which may run in a thread of its own."""

    def __init__(self, run, middle):
        super().__init__()
        self.run, self.stem = run, nn.Linear(8, 8)
        self.left, self.right = (nn.Sequential(nn.Linear(8, 16), part, nn.Linear(16, 4)) for part in middle)

    def encode(self, tower, x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.normalize(tower(x).float(), dim=-1)

    def forward(self, x):
        h = torch.sin(self.stem(x))
        a, b = self.run([lambda: self.encode(self.left, h), lambda: self.encode(self.right, h)])
        return (a * b).sum(-1)


def recorded(run):
    torch.manual_seed(0)
    model = Towers(run, (nn.Tanh(), nn.Sigmoid()))
    recorder = Recorder(model, compiled=False)
    recorder.follow_threads()
    with recorder:
        model(torch.randn(4, 8)).sum().backward()
    trace = recorder.trace(recorder.fetch())
    assert not trace.not_audited
    return model, trace


def computed(trace):
    """Return what operations gave; which tower autograd is at when it adds up the stem's gradient is up to it."""
    return {site: stats for site, stats in trace.sites.items() if site.op not in {"", "add"}}


@pytest.mark.parametrize("run", [threads, pool, turns])
def test_threads_leave_the_trace_of_one_thread(run):
    (plain, expected), (model, found) = recorded(one_after_the_other), recorded(run)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert computed(found) == computed(expected)
    assert {one.path: one.calls for one in found.modules} == {one.path: one.calls for one in expected.modules}
    backward = {site.op: site.module for site in found.sites if site.phase is Phase.BACKWARD}
    assert (backward["tanh_backward"], backward["sigmoid_backward"]) == ("left.1", "right.1")


def test_nothing_of_a_thread_stays_that_outlives_the_recording():
    goes, done, kept = threading.Event(), threading.Event(), []

    def late():
        goes.wait(10)
        kept.append(torch.ones(3, requires_grad=True) * 2)
        done.set()

    recorder = Recorder(nn.Linear(2, 2), compiled=False)
    recorder.follow_threads()
    with recorder:
        threading.Thread(target=late).start()
    before = recorder.operations
    goes.set()
    assert done.wait(10)
    assert (recorder.operations, kept[0].tolist()) == (before, [2.0, 2.0, 2.0])


def test_an_operation_that_waits_for_another_thread_stalls_neither(monkeypatch):
    monkeypatch.setattr(lanes, "_PATIENCE", 0.2)
    begun, came = threading.Event(), threading.Event()

    @torch.library.custom_op("ampcheck_test::waits", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        begun.set()
        assert came.wait(30)
        return x + 1

    def beside():
        begun.wait(30)
        torch.sin(torch.ones(3))
        came.set()

    heard = []
    recorder = Recorder(nn.Linear(2, 2), compiled=False)
    recorder.spared = heard.append
    recorder.follow_threads()
    with recorder:
        other = threading.Thread(target=beside)
        other.start()
        out = waits(torch.ones(2))
        other.join(30)
    assert out.tolist() == [2.0, 2.0]
    assert [type(error) for error in heard] == [TimeoutError]


def train(run, middle, scale, steps=6):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Towers(run, middle)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(steps):
            optimizer.zero_grad()
            encoded = run(
                [lambda: encode(model.left, scale), lambda: encode(model.right, scale)],
            )
            scaler.scale((encoded[0] * encoded[1]).sum(-1).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    return session.report("script.py")


def encode(tower, scale):
    with torch.autocast("cuda", torch.float16):
        return F.normalize(tower(scale * torch.randn(16, 8)).float(), dim=-1)


@pytest.mark.parametrize("run", [threads, pool, turns])
def test_an_overflow_in_a_thread_is_an_error_at_its_own_line(run):
    report = train(run, (nn.Tanh(), nn.Sequential(Cube(), nn.Linear(1, 16))), 300.0)
    assert report.verdict.word is Health.UNSAFE
    first = report.findings[0]
    assert (first.code, first.origin.op, first.origin.module) == ("AMP101", "mul", "model.right.1.0")


@pytest.mark.parametrize("run", [threads, pool, turns])
def test_healthy_towers_in_threads_are_seen_and_safe(run):
    report = train(run, (nn.Tanh(), nn.Sigmoid()), 1.0)
    assert THREADS not in report.not_audited
    assert report.verdict.word is Health.SAFE, report.verdict.sentence


@pytest.mark.parametrize("run", [threads, pool])
def test_a_model_whose_forward_starts_threads_is_seen_in_every_step(run):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Towers(run, (nn.Tanh(), nn.Sigmoid()))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
    report = session.report("script.py")
    assert not report.not_audited
    assert report.verdict.word is Health.SAFE, report.verdict.sentence


@pytest.mark.parametrize("scaled", [True, False])
def test_a_thread_that_runs_its_own_backward_is_compared_at_the_scale_that_divides_it(scaled):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        stem, head, beside = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 1)
        optimizer = torch.optim.SGD([*stem.parameters(), *head.parameters(), *beside.parameters()], 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)

        def train_beside(h):
            with torch.autocast("cuda", torch.float16):
                loss = beside(h).float().square().mean()
            (scaler.scale(loss) if scaled else loss).backward()

        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                h = stem(torch.randn(16, 8))
                loss = head(h).float().square().mean()
            thread = threading.Thread(target=train_beside, args=(h.detach(),))
            thread.start()
            scaler.scale(loss).backward()
            thread.join()
            scaler.step(optimizer)
            scaler.update()
    report = session.report("script.py")
    assert report.verdict.word is (Health.SAFE if scaled else Health.UNSAFE), report.verdict.sentence
    errors = [one.code for one in report.findings if one.severity is Severity.ERROR]
    assert errors == ([] if scaled else ["AMP408"])


def test_sites_follow_what_they_are_made_of_and_keep_their_order_otherwise():
    a, b, c, d = (Site("", op, "output", Phase.FORWARD, "float16") for op in "abcd")
    sites = {one: TensorStats() for one in (a, b, c, d)}
    assert [*after_sources(sites, {})] == [a, b, c, d]
    assert [*after_sources(sites, {a: [d, c], b: [a], c: [a]})] == [d, c, a, b]
