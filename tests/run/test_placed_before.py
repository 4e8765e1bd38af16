"""Where errors are said to be, where numbers were wrong long before they are read: in threads, states, backwards."""

import queue
import threading

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def errors_of(loop):
    session = Session(Schedule(), as_cuda=True)
    session.watcher.thread.follows = True  # as `ampcheck run` lets it
    with session.watching():
        loop()
    assert not session.watcher.broken, session.watcher.not_seen
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]


# -- numbers that a thread computes in half precision, before it stores them


def returns_of(kind, *, generator):
    """Return sums of what comes later, as returns are."""
    rewards = (0.02 + 0.002 * torch.randn(2000, 8, generator=generator)).to(kind)
    held, running = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    for tick in reversed(range(2000)):
        running = rewards[tick] + 0.999 * running
        held[tick] = running
    return held


def loudness_of(kind, *, generator):
    """Return signals divided by their root mean square."""
    signal = (500 + 100 * torch.randn(8, 400, generator=generator)).to(kind)
    root = signal.pow(2).mean(1, keepdim=True).sqrt()
    return (signal / root).T


def computed(made, about, kind, steps=8):
    batches: queue.Queue = queue.Queue(2)

    def computes():
        generator = torch.Generator().manual_seed(1)
        for _ in range(steps):
            batches.put(made(kind, generator=generator))

    torch.manual_seed(0)
    thread = threading.Thread(target=computes)
    thread.start()
    model = nn.Linear(8, 8)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda", 2.0**8)
    for _ in range(steps):
        numbers = batches.get()[torch.randint(100, (32,))].float()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(model(torch.ones(32, 8)).float(), numbers - about)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    thread.join()


@pytest.mark.parametrize(
    ("made", "about", "part"),
    [(returns_of, 17.0, "running = rewards[tick]"), (loudness_of, 1.0, "signal.pow(2)")],
)
@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_numbers_of_a_thread_are_placed_where_they_were_computed_or_overflowed(made, about, part, kind):
    errors = errors_of(lambda: computed(made, about, kind))
    assert bool(errors) is (kind is torch.float16)
    for error in errors[:1]:
        assert (error.code, error.origin.line) == ("AMP501", line_of(made, part))


# -- a state that is infinite, and what reads it


class Scaled(nn.Module):
    """Divides inputs by a running deviation."""

    def __init__(self):
        super().__init__()
        self.register_buffer("var", torch.ones(8))

    def forward(self, x):
        with torch.no_grad():
            self.var.mul_(0.8).add_(0.2 * (x.float() ** 2).mean(0).to(self.var.dtype))
        return x / (self.var + 0.01).sqrt()


def divided(kind, steps=120):
    torch.manual_seed(0)
    scaled, layer = Scaled().to(kind), nn.Linear(8, 1)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), 0.1), torch.amp.GradScaler("cuda", 2.0**8)
    sizes = torch.tensor([1.0] * 7 + [200.0])
    for step in range(steps):
        x = torch.randn(32, 8) * sizes * (1 + step / 40)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(layer(scaled(x.to(kind))).float(), (x / sizes).sum(1, keepdim=True))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaled


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_an_infinite_state_comes_before_what_reads_it(kind):
    held = []
    errors = errors_of(lambda: held.append(divided(kind)))
    assert bool(held[0].var.isfinite().all()) is (kind is torch.float32)
    line = line_of(Scaled.forward, "self.var.mul_")
    found = [(error.code, error.origin.line) for error in errors]
    assert found == ([("AMP101", line), ("AMP504", line)] if kind is torch.float16 else [])


# -- a limit in a backward that runs again and again


class Bound(torch.autograd.Function):
    """Limits the gradient that flows back in time."""

    @staticmethod
    def forward(ctx, state, limit):
        ctx.limit = limit
        return state.view_as(state)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-ctx.limit, ctx.limit), None


def unrolled(times_scale, steps=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cuda", 2.0**12)
    for _ in range(steps):
        state, loss = torch.randn(16, 2), 0.0
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            for _ in range(10):
                state = Bound.apply(state, scaler.get_scale() if times_scale else 1.0)
                state = 0.9 * state + 0.3 * model(state).float()
                loss = loss + state.square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("times_scale", [True, False])
def test_a_limit_in_a_loop_over_time_is_named_though_what_it_cuts_off_shows_before_it(times_scale):
    errors = errors_of(lambda: unrolled(times_scale))
    assert [one.code for one in errors] == ([] if times_scale else ["AMP401"])
    for error in errors:
        assert error.origin.line == line_of(Bound.backward, "grad.clamp")
