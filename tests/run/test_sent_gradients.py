"""Gradients that workers' threads compute and make half precision of before they send them: looked at at the cast."""

import queue
import threading

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.observe.script.state import sent_gradients
from ampcheck.observe.script.state.sent_gradients import SentGradients
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def rounds(factor, dtype, *, returned, drops=True, within=torch.bfloat16, times=12):
    """Let a worker send the gradients of a loss times a factor in a precision; return what was sent."""
    torch.manual_seed(0)
    server, worker = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizer, box, sent = torch.optim.SGD(server.parameters(), 1e-3), [], []

    def work():
        worker.load_state_dict(server.state_dict())
        x = torch.randn(64, 8)
        with torch.autocast("cuda", within):
            loss = factor * F.mse_loss(worker(x).float(), 5 + x.sum(1, keepdim=True))
        if returned:
            grads = torch.autograd.grad(loss, list(worker.parameters()))
        else:
            worker.zero_grad()
            loss.backward()
            grads = [one.grad for one in worker.parameters()]
        box.append([grad.to(dtype) for grad in grads])

    for _ in range(times):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        grads = box.pop()
        sent += grads
        if drops and not all(bool(grad.isfinite().all() and grad.any()) for grad in grads):
            continue
        for parameter, grad in zip(server.parameters(), grads, strict=True):
            parameter.grad = grad.float() / factor
        optimizer.step()
    return sent


def watched(*given, **said):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        sent = rounds(*given, **said)
    assert not session.watcher.broken, session.watcher.not_seen
    assert session.trained
    return session.report("script.py"), sent


@pytest.mark.parametrize("returned", [True, False])
@pytest.mark.parametrize(("factor", "made"), [(1e6, "infinite"), (1e-9, "zero")])
def test_gradients_that_the_cast_before_sending_ruins(factor, made, returned):
    report, sent = watched(factor, torch.float16, returned=returned)
    ruined = sum(
        not bool(one.isfinite().all()) if made == "infinite" else not bool(one.any()) for one in sent
    )
    assert ruined >= len(sent) // 2  # as a real cast has it
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert errors[0].code == "AMP421"
    assert f"gradients that the script passes on become {made} in half precision here" in errors[0].message
    assert errors[0].origin.line == line_of(rounds, "box.append")


@pytest.mark.parametrize("returned", [True, False])
@pytest.mark.parametrize(
    ("factor", "dtype"), [(1e6, torch.bfloat16), (1.0, torch.float16), (1e6, torch.float32)]
)
def test_gradients_that_it_leaves_as_they_are(factor, dtype, returned):
    report, sent = watched(factor, dtype, returned=returned)
    assert all(bool(one.isfinite().all() and one.any()) for one in sent)
    assert not [one for one in report.findings if one.severity is Severity.ERROR]


def stages(factor, sends, *, ahead):
    """Train two stages, each in a thread, of a loss times a factor; return what the second sends the first."""
    torch.manual_seed(0)
    first, second = nn.Linear(8, 4), nn.Linear(4, 1)
    over, back, sent = queue.Queue(), queue.Queue(), []

    def one():
        optimizer = torch.optim.Adam(first.parameters(), 1e-3)
        for _ in range(12):
            with torch.autocast("cuda", torch.bfloat16):
                out = first(torch.randn(64, 8))
            over.put(out.detach())
            optimizer.zero_grad()
            out.backward(back.get().to(out.dtype))
            optimizer.step()

    def two():
        optimizer = torch.optim.Adam(second.parameters(), 1e-3)
        for _ in range(12):
            given = over.get().requires_grad_()
            with torch.autocast("cuda", torch.bfloat16):
                loss = factor * (second(given).float() - 5).square().mean()
            optimizer.zero_grad()
            loss.backward()
            sent.append(sends(given.grad))
            back.put(sent[-1])
            optimizer.step()

    here, there = (two, one) if ahead else (one, two)
    thread = threading.Thread(target=there)
    thread.start()
    here()
    thread.join()
    return sent


SENDS = [
    (1e-9, lambda grad: grad.half()),
    (1e-8, lambda grad: (1e3 * grad).half() / 1e3),
    (1e-9, lambda grad: grad.float()),
    (1.0, lambda grad: grad.half()),
]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(("factor", "sends"), SENDS)
def test_gradients_that_a_stage_sends_back(factor, sends, ahead):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        sent = stages(factor, sends, ahead=ahead)
    assert not session.watcher.broken, session.watcher.not_seen
    found = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    ruined = not any(bool(one.any()) for one in sent)  # as the real cast and division have it
    assert [one.code for one in found[:1]] == ["AMP421"] * ruined
    assert all(one.origin.line == sends.__code__.co_firstlineno for one in found[:1])


def test_gradients_of_weights_that_nothing_steps_are_never_safe():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(4, 8)).float().square().mean()
        torch.autograd.grad(loss, list(model.parameters()))
    assert not session.trained
    assert session.left_out == "1 backward computed gradients: what they change was not seen"
    assert session.report("script.py").verdict.word is not Health.SAFE
    del optimizer


def test_gradients_that_another_thread_adds_meanwhile_break_nothing(monkeypatch):
    """Each that is looked at whether it is gone comes with a new one, as another thread's backward brings it."""
    monkeypatch.setattr(sent_gradients, "_HELD", 8)
    seen = SentGradients()
    kept = [torch.ones(4) for _ in range(40)]

    class Adding(sent_gradients.StorageWeakRef):
        def expired(self):
            seen._gradients.setdefault(len(seen._gradients) - 1000, self)
            return super().expired()

    monkeypatch.setattr(sent_gradients, "StorageWeakRef", Adding)
    for one in kept:
        seen.computed([one])
    told, last = [], torch.full((4,), 1e-9)
    for _ in range(8):
        seen.computed([last])
        seen.sends(sent_gradients._CAST, (last,), last.half(), told.append)
    assert len(told) == 1


@pytest.mark.parametrize("returned", [True, False])
@pytest.mark.parametrize(
    ("factor", "within", "gone"),
    [(1e-9, torch.float16, True), (1e-9, torch.bfloat16, False), (1.0, torch.float16, False)],
)
def test_gradients_that_autocast_makes_zero_before_they_are_computed(factor, within, gone, returned):
    """What is sent is zero and FP32: the casts within the backward have done it."""
    report, sent = watched(factor, torch.float32, returned=returned, drops=False, within=within, times=24)
    assert all(bool(one.any()) for one in sent) is not gone
    assert not gone or not any(bool(one.any()) for one in sent)
    errors = [one for one in report.findings if one.code == "AMP421"]
    assert bool(errors) is gone
    for error in errors:
        assert error.origin.line == line_of(rounds, "torch.autograd.grad" if returned else "loss.backward()")


def test_casts_of_zeros_within_a_backward_are_not_looked_at_for_ever(monkeypatch):
    """Each look waits for a GPU: a gradient that is zero in every step says nothing, and there are many."""
    looks, seen, told = [], SentGradients(), []
    size = sent_gradients._size
    monkeypatch.setattr(sent_gradients, "_size", lambda tensor: looks.append(tensor) or size(tensor))
    zeros = torch.zeros(4)
    for _ in range(2000):
        seen.casts_within(zeros, zeros.half(), told.append)
    assert 0 < len(looks) < 300
    assert told == []


def mean_of_clients(divides_first, *, overflows=False, rounds=12, clients=3, scale=2.0**20):
    """Average clients' gradients, sent in half precision; divided by the loss scale first, or by the server."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer, dropped = torch.optim.Adam(model.parameters(), 1e-3), 0
    for _ in range(rounds):
        sent = []
        for _ in range(clients):
            model.zero_grad()
            with torch.autocast("cuda", torch.float16):
                out = model(torch.randn(16, 8))
            loss = (1e10 if overflows else 1e-5) * (1e-3 * out.float()).square().sum()
            (loss * scale).backward()
            for parameter in model.parameters():
                parameter.grad.div_(scale if divides_first else 1.0)
            packed = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            sent.append(packed.to(torch.float16))
        mean = torch.stack([one.float() for one in sent]).mean(0) / (1.0 if divides_first else scale)
        if not bool(mean.isfinite().all()):
            dropped += 1
            continue
        weight, bias = mean.split([32, 4])
        model.weight.grad, model.bias.grad = weight.view_as(model.weight).clone(), bias.clone()
        optimizer.step()
    return dropped


@pytest.mark.parametrize("divides_first", [True, False])
def test_gradients_that_are_sent_before_they_are_cleared_are_no_skipped_steps(divides_first):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        assert mean_of_clients(divides_first) == 0
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    there = line_of(mean_of_clients, "sent.append")
    assert [(one.code, one.origin.line) for one in errors] == [("AMP421", there)] * divides_first
    if errors:
        assert errors[0].fix == (
            "# this line, without the cast to half precision, or divided by the loss scale after it",
        )


def test_rounds_whose_gradients_overflow_are_skipped_steps():
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        assert mean_of_clients(divides_first=True, overflows=True) == 12
    assert "AMP206" in {one.code for one in session.report("script.py").findings}
