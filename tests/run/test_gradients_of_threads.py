"""Threads that train beside each other: none reads a gradient that another one may be about to let go."""

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from ampcheck.observe.model.gradients import forget, gradient_of, others_begin, thread_ends, trains_here

#: Four threads train models of their own, and each reads the gradients of all of them between its steps.
_FOUR = """
import sys, threading, torch
from ampcheck.observe.model.gradients import gradient_of, thread_ends, trains_here
torch.set_num_threads(1)
sys.setswitchinterval(1e-5)
nets = [torch.nn.Linear(24, 24) for _ in range(4)]
everything = [one for net in nets for one in net.parameters()]
read = []
def train(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(1500):
        trains_here(optimizer)
        optimizer.zero_grad()
        net(torch.randn(8, 24)).square().mean().backward()
        optimizer.step()
        read.append(sum(gradient_of(one) is not None for one in everything))  # a sum of all threads would lose some
    thread_ends()
threads = [threading.Thread(target=train, args=(net,)) for net in nets]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(read))
"""

#: A script whose recorded steps use weights that no module holds, so that the running frames are looked at.
_LOOSE = """
import torch
weight = torch.nn.Parameter(torch.randn(8, 8))
optimizer = torch.optim.SGD([weight], lr=0.01)
for step in range(12):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (torch.randn(4, 8) @ weight).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

#: Runs a script under ampcheck, and counts the tensors and frames that only the garbage collector could free.
_GARBAGE = """
import atexit, gc, runpy, sys
gc.set_debug(gc.DEBUG_SAVEALL)
def report():
    import torch, types
    left = [one for one in gc.garbage if isinstance(one, torch.Tensor)]
    frames = [one for one in gc.garbage if isinstance(one, types.FrameType)]
    ours = [one for one in frames if "ampcheck" in one.f_code.co_filename]
    print("LEFT", len(left), len(ours))
atexit.register(report)
sys.argv = ["ampcheck", "run", sys.argv[1]]
runpy.run_module("ampcheck", run_name="__main__")
"""


def _elsewhere(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.fixture
def weights():
    found = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    for one in found:
        one.grad = torch.ones(2)
    return found


def test_where_one_thread_trains_it_reads_every_gradient(weights):
    trains_here(torch.optim.SGD(weights, lr=0.1))
    assert all(gradient_of(one) is one.grad for one in weights)
    thread_ends()


def test_a_gradient_is_read_by_the_thread_that_trains_its_parameter(weights):
    own, others = weights
    begun, over, seen = threading.Event(), threading.Event(), []

    def train():
        trains_here(torch.optim.SGD([others], lr=0.1))
        trains_here(torch.optim.SGD([others], lr=0.1))  # by now there are two
        seen.extend(gradient_of(one) for one in weights)
        begun.set()
        over.wait()
        thread_ends()

    trains_here()
    thread = threading.Thread(target=train)
    thread.start()
    begun.wait()
    trains_here(torch.optim.SGD([own], lr=0.1))
    try:
        assert gradient_of(own) is own.grad
        assert gradient_of(others) is None
        assert seen == [None, others.grad]
    finally:
        over.set()
        thread.join()
    assert gradient_of(others) is others.grad  # nobody else trains any more
    thread_ends()


def test_a_thread_that_has_ended_trains_nothing(weights):
    trains_here()
    _elsewhere(lambda: (trains_here(torch.optim.SGD(weights, lr=0.1)), thread_ends()))
    assert gradient_of(weights[0]) is weights[0].grad
    thread_ends()


def test_a_thread_that_begins_while_nobody_is_heard_is_none_that_trains(weights):
    others_begin(object())
    try:
        assert gradient_of(weights[0]) is weights[0].grad
    finally:
        forget()


def test_four_threads_that_train_and_read_go_on():
    done = subprocess.run([sys.executable, "-c", _FOUR], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout) >= 4 * 1500 * 2  # each has read its own


def test_a_recorded_step_leaves_nothing_that_only_the_garbage_collector_frees(tmp_path):
    script, runner = tmp_path / "train.py", tmp_path / "garbage.py"
    script.write_text(_LOOSE)
    runner.write_text(_GARBAGE)
    done = subprocess.run(
        [sys.executable, str(runner), str(script)], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert "LEFT 0 0" in done.stdout, done.stdout[-300:] + done.stderr[-500:]
