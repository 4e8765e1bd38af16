"""Gradients that an optimizer is handed: of copies, of threads, of torch.func, of a backward of the script's own."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROWS, LARGER = 40, 32.0


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def batch():
    return torch.rand(ROWS, 4) + 0.5


def loss_of(net, row):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return net(row).float().square().mean()


def summed(gradients, dtype):
    """Add up the gradients of rows in a buffer of this dtype, which holds something larger already."""
    total = None
    for row in gradients:
        total = total or [torch.full_like(one, LARGER, dtype=dtype) for one in row]
        total = [held + one.to(dtype) for held, one in zip(total, row, strict=True)]
    return [(one.float() - LARGER) / ROWS for one in total]


def by_copies(net, rows, dtype):
    twin = copy.deepcopy(net)
    return summed((torch.autograd.grad(loss_of(twin, row), list(twin.parameters())) for row in rows), dtype)


def by_threads(net, rows, dtype):
    def of_part(job):
        twin, part = job
        return [torch.autograd.grad(loss_of(twin, row), list(twin.parameters())) for row in part]

    with ThreadPoolExecutor(2) as pool:
        found = pool.map(of_part, [(copy.deepcopy(net), part) for part in rows.chunk(2)])
        return summed([row for part in found for row in part], dtype)


def by_functions(net, rows, dtype):
    weights = {name: one.detach() for name, one in net.named_parameters()}
    of_row = grad(lambda held, row: loss_of(lambda x: functional_call(net, held, (x,)), row))
    return summed((tuple(of_row(weights, row).values()) for row in rows), dtype)


class _Mean(torch.autograd.Function):
    """The mean loss, without a graph of the forward."""

    @staticmethod
    def forward(ctx, net, rows, dtype, *_weights):
        ctx.given = net, rows, dtype
        return torch.stack([loss_of(net, row) for row in rows]).mean()

    @staticmethod
    def backward(ctx, _):
        net, rows, dtype = ctx.given

        def of(row):
            with torch.enable_grad():
                return torch.autograd.grad(loss_of(net, row), list(net.parameters()))

        return None, None, None, *summed(map(of, rows), dtype)


def by_a_backward(net, rows, dtype):
    _Mean.apply(net, rows, dtype, *net.parameters()).backward()
    return [one.grad for one in net.parameters()]


def trained(gradients, dtype):
    torch.manual_seed(1)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        for parameter, own in zip(net.parameters(), gradients(net, batch(), dtype), strict=True):
            parameter.grad = own
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.parametrize("gradients", [by_copies, by_threads, by_functions, by_a_backward])
def test_a_step_whose_gradients_no_backward_left_is_judged(gradients):
    torch.manual_seed(2)
    rows = batch()
    unrecorded = Schedule(first=0, every=0)
    with Session(unrecorded, as_cuda=True).watching():
        bare = {dtype: trained(gradients, dtype) for dtype in (torch.float32, torch.bfloat16)}
        wide, low = (by_copies(model(), rows, dtype) for dtype in bare)
    apart = sum((a - b).square().sum() for a, b in zip(wide, low, strict=True))
    truth = float((apart / sum(one.square().sum() for one in wide)).sqrt())
    assert truth > 0.3  # bf16 has no bits for what is added
    for dtype, error in ((torch.bfloat16, truth), (torch.float32, 0.0)):
        session = Session(Schedule(), as_cuda=True)
        with session.watching():
            watched = trained(gradients, dtype)
        assert all(map(torch.equal, watched, bare[dtype]))
        report = session.report("train.py")
        assert report.loop.recorded
        errors = [finding.code for finding in report.findings if finding.severity == "error"]
        assert bool(errors) == bool(error)
        assert (report.verdict.word is Health.UNSAFE) == bool(error)
        assert error / 2 < report.outcomes["settled"].error < max(2 * error, 0.05)
