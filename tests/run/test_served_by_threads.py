"""Weights that a server keeps in half precision, and that threads train for it."""

import queue
import threading

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule

ROUNDS = 60
STEP = 1e-3  # less than half of what bfloat16 tells apart at 1: 2^-9
assert 1.0 - torch.tensor(STEP).bfloat16() == 1.0


class Server:
    """What all threads move, and get a copy of."""

    def __init__(self, dtype):
        self.weights = {"weight": torch.ones(8, 8, dtype=dtype), "bias": torch.ones(8, dtype=dtype)}
        self.inbox, self.outbox = queue.Queue(), queue.Queue()

    def publish(self):
        self.outbox.put({name: one.clone() for name, one in self.weights.items()})

    def update(self):
        self.inbox.get()
        for one in self.weights.values():
            one.sub_(torch.full(one.shape, STEP))

    def serve(self):
        self.publish()
        for _ in range(ROUNDS):
            self.update()
            self.publish()


def losses_of(model):
    with torch.autocast("cuda", torch.bfloat16):
        return model(torch.randn(4, 8)).float().square().mean()


def by_hand(server):
    """Send gradients that nothing in this thread steps with."""
    model = nn.Linear(8, 8).to(torch.bfloat16)
    for _ in range(ROUNDS):
        model.load_state_dict(server.outbox.get())
        loss = model(torch.randn(4, 8).bfloat16()).float().square().mean()
        model.zero_grad()
        loss.backward()
        server.inbox.put([one.grad for one in model.parameters()])


def own_steps(server):
    """Train a copy, which keeps its own weights."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(ROUNDS):
        server.outbox.get()
        optimizer.zero_grad()
        losses_of(model).backward()
        optimizer.step()
        server.inbox.put(None)


def in_a_thread(server):
    serving = threading.Thread(target=server.serve)
    working = threading.Thread(target=by_hand, args=(server,))
    for thread in (serving, working):
        thread.start()
    for thread in (serving, working):
        thread.join()


def in_the_main_thread(server):
    """Serve from the thread that looks at a model now and then, and trains none."""
    shown = nn.Linear(8, 8)
    working = threading.Thread(target=own_steps, args=(server,))
    working.start()
    for round_ in range(ROUNDS):
        server.publish()
        server.update()
        if not round_ % 8:
            losses_of(shown).item()
    working.join()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("serve", [in_a_thread, in_the_main_thread])
def test_weights_of_a_server_that_stand_still_are_an_error_at_its_line(serve, dtype):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True, follows=True)
    with session.watching():
        server = Server(dtype)
        serve(server)
    lost = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    moved = 1.0 - server.weights["weight"].float()
    if dtype is torch.float32:
        assert torch.allclose(moved, torch.full((8, 8), ROUNDS * STEP), rtol=1e-3)
        assert lost == []
    else:
        assert not moved.any()
        assert [(one.code, one.origin.line) for one in lost] == [
            ("AMP504", line_of(Server.update, "one.sub_"))
        ]


def learned_elsewhere(scale):
    """Compute losses here and step in another thread, which multiplies them by a scale; return the report."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True, follows=True)
    inbox, outbox = queue.Queue(), queue.Queue()
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)

        def learn():
            while (loss := inbox.get()) is not None:
                optimizer.zero_grad()
                (loss * scale).backward()
                for one in model.parameters():
                    one.grad.div_(scale)
                optimizer.step()
                outbox.put(True)

        learner = threading.Thread(target=learn)
        learner.start()
        for _ in range(6):
            with torch.autocast("cuda", torch.float16):
                loss = 1e-6 * model(torch.randn(64, 8)).float().square().mean()
            inbox.put(loss)
            outbox.get()
        inbox.put(None)
        learner.join()
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("script.py")


def test_a_loss_without_a_scale_is_said_where_another_thread_calls_its_backward():
    report = learned_elsewhere(1.0)
    first = next(one for one in report.findings if one.severity is Severity.ERROR)
    assert (first.code, first.origin.line) == ("AMP408", line_of(learned_elsewhere, ".backward()"))


def test_the_same_loss_with_a_scale_is_no_error():
    report = learned_elsewhere(2.0**20)
    assert not [one for one in report.findings if one.severity is Severity.ERROR]
