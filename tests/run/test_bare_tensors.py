"""Training without modules and optimizers: bare tensors that a script changes by hand, also in threads."""

import queue
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.observe.script.hand_watcher import LATER_BACKWARDS
from ampcheck.run.session import Session
from ampcheck.saved.report_json import read
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def loop(first, second, rate, steps=40):
    for _ in range(steps):
        x = torch.randn(64, 16)
        with torch.autocast("cuda", torch.bfloat16):
            out = torch.relu(x @ first) @ second
        loss = (out.float() - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in (first, second):
                weight.sub_(rate * weight.grad)
                weight.grad = None


def test_a_second_backward_of_a_step_is_said_to_be_unseen():
    """What it computes is far off, and no recording holds it."""
    first, second = weights(torch.float32)
    third = torch.ones(16, 1, requires_grad=True)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        for _ in range(30):
            x = torch.randn(64, 16)
            with torch.autocast("cuda", torch.bfloat16):
                out, far = torch.relu(x @ first) @ second, (x + 2000) @ third
            (out.float() - 1).square().mean().backward()
            far.float().sin().square().mean().backward()
            with torch.no_grad():
                for weight in (first, second, third):
                    weight.sub_(1e-3 * weight.grad)
                    weight.grad = None
    verdict = session.report("script.py").verdict
    assert verdict.word is Health.PARTLY_AUDITED
    assert LATER_BACKWARDS in verdict.sentence


def weights(dtype):
    torch.manual_seed(0)
    first = (torch.randn(16, 32) / 4).to(dtype).requires_grad_()
    return first, (torch.randn(32, 1) / 6).requires_grad_()


@pytest.mark.parametrize(("dtype", "rate"), [(torch.float32, 0.01), (torch.bfloat16, 5e-4)])
def test_a_loop_over_bare_tensors_is_seen(dtype, rate):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        loop(*weights(dtype), rate)
    report = session.report("script.py")
    half = dtype is torch.bfloat16
    assert report.verdict.word is (Health.UNSAFE if half else Health.SAFE)
    assert [one.code for one in report.findings if one.severity.name == "ERROR"] == ["AMP504"] * half
    assert report.loop.steps >= 38
    grads = {site.slot for site in report.low.sites if site.slot.startswith("param_grad")}
    assert grads == {"param_grad[first]", "param_grad[second]"}


def test_it_changes_nothing():
    plain, seen = weights(torch.float32), weights(torch.float32)
    torch.manual_seed(1)
    with cuda_casting(), autocast_stands_in():
        loop(*plain, 0.01)
    torch.manual_seed(1)
    with Session(Schedule(), as_cuda=True).watching():
        loop(*seen, 0.01)
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))


class Server:
    """Holds weights that workers fetch, and changes them by their gradients."""

    def __init__(self, model, dtype):
        self.weights = {name: one.detach().to(dtype).clone() for name, one in model.named_parameters()}

    def fill(self, model):
        with torch.no_grad():
            for name, one in model.named_parameters():
                one.copy_(self.weights[name])

    def change(self, gradients, rate):
        for name, one in self.weights.items():
            one.sub_((rate * gradients[name]).to(one.dtype))


class Worker(threading.Thread):
    """Computes gradients when it is told to."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.model = server, nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.go, self.done = queue.Queue(), queue.Queue()

    def run(self):
        while self.go.get():
            self.server.fill(self.model)
            x = torch.randn(32, 8)
            with torch.autocast("cuda", torch.bfloat16):
                loss = (self.model(x).float() - x.sum(1, keepdim=True)).square().mean()
            self.model.zero_grad()
            loss.backward()
            self.done.put({name: one.grad for name, one in self.model.named_parameters()})


def serve(dtype, rate, steps):
    torch.manual_seed(0)
    shown = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    server = Server(shown, dtype)
    worker = Worker(server)
    worker.start()
    for _ in range(steps):
        worker.go.put(True)
        server.change(worker.done.get(), rate)
        server.fill(shown)
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            shown(torch.randn(4, 8))
    worker.go.put(False)
    worker.join()


@pytest.mark.parametrize(("dtype", "rate"), [(torch.bfloat16, 2e-4), (torch.float32, 0.01)])
def test_a_server_that_changes_weights_by_gradients_of_a_thread_is_seen(dtype, rate):
    session = Session(Schedule(), as_cuda=True, follows=True)
    with session.watching():
        serve(dtype, rate, 60)
    report = session.report("script.py")
    half = dtype is torch.bfloat16
    assert session.trained
    assert report.verdict.word is Health.UNSAFE if half else report.verdict.word is not Health.UNSAFE
    found = [one for one in report.findings if one.severity.name == "ERROR"]
    assert {one.code for one in found} == ({"AMP504"} if half else set())


def test_backwards_of_threads_belong_to_the_optimizer_that_steps():
    def add_up():
        for _ in range(12):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(torch.randn(8, 4)).float().square().mean() / 12
            loss.backward()

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = Session(Schedule(), as_cuda=True, follows=True)
    with session.watching():
        for _ in range(3):
            thread = threading.Thread(target=add_up)
            thread.start()
            thread.join()
            optimizer.step()
            optimizer.zero_grad()
    assert session.report("script.py").loop.steps == 3


USED = """
import threading, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 4)
def work():
    for _ in range({backwards}):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(4, 8)).float().square().mean()
        loss.backward()
thread = threading.Thread(target=work)
thread.start()
thread.join()
with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
    for _ in range(4):
        model(torch.randn(4, 8))
"""


@pytest.mark.parametrize("backwards", [0, 3])
def test_forwards_are_not_all_of_a_script_that_computed_gradients(tmp_path, backwards):
    script, out = tmp_path / "serve.py", tmp_path / "report.json"
    script.write_text(USED.format(backwards=backwards))
    command = [sys.executable, "-m", "ampcheck", "run", "--as-cuda", "-o", str(out), str(script)]
    subprocess.run(command, check=False, capture_output=True, timeout=120)
    verdict = read(out).verdict
    assert verdict.word is (Health.PARTLY_AUDITED if backwards else Health.SAFE)
    assert ("3 backwards computed gradients" in verdict.sentence) is bool(backwards)
