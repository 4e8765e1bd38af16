"""Optimizers of a script's own that keep their states in half precision: where zeros in them throw the weights away."""

from pathlib import Path

import pytest
import torch
from code_lines import line_of
from torch import nn

import ampcheck
from ampcheck.values.findings import Severity
from ampcheck.values.verdict import Health


class SlimAdam(torch.optim.Optimizer):
    def __init__(self, params, dtype, eps=1e-8):
        super().__init__(params, {"lr": 2e-3})
        self.dtype, self.eps = dtype, eps

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["t"] = 0
                state["m"], state["v"] = (torch.zeros_like(p, dtype=self.dtype) for _ in range(2))
            state["t"] += 1
            state["m"].copy_(state["m"].float().mul_(0.9).add_(p.grad, alpha=0.1))
            state["v"].copy_(state["v"].float().mul_(0.999).addcmul_(p.grad, p.grad, value=0.001))
            m, v = (
                state["m"].float() / (1 - 0.9 ** state["t"]),
                state["v"].float() / (1 - 0.999 ** state["t"]),
            )
            p.sub_(2e-3 * m / (v.sqrt() + self.eps))
        return loss


def trained(dtype, eps=1e-8, *, closure=False, watch=True, size=0.1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = SlimAdam(model.parameters(), dtype, eps)

    def loss():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            made = nn.functional.mse_loss(model(size * torch.randn(32, 16)).float(), torch.zeros(32, 8))
        made.backward()
        return made

    def loop():
        for _ in range(8):
            if closure:
                optimizer.step(loss)
            else:
                loss()
                optimizer.step()

    if not watch:
        loop()
        return model, None
    with ampcheck.watch(model, optimizer) as watching:
        loop()
    return model, watching.report()


def norm(model):
    return float(torch.cat([p.detach().flatten() for p in model.parameters()]).norm())


@pytest.mark.parametrize(
    ("dtype", "eps"),
    [(torch.float16, 1e-8), (torch.float16, 1e-3), (torch.bfloat16, 1e-8), (torch.float32, 1e-8)],
)
def test_a_second_moment_that_is_zero_is_named_before_what_the_weights_do(dtype, eps):
    model, report = trained(dtype, eps)
    witness, _ = trained(torch.float32, eps, watch=False)
    thrown = not (norm(model) <= 10 * norm(witness))
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert thrown is (dtype is torch.float16 and eps < 1e-3)
    assert (report.verdict.word is Health.UNSAFE) is thrown
    if thrown:
        first = errors[0]
        assert (first.code, first.sites[0].module) == ("AMP504", "SlimAdam.state")
        assert first.sites[0].slot == "param[v]"
        lines = Path(__file__).read_text(encoding="utf-8").splitlines()
        assert lines[first.sites[0].line - 1].lstrip().startswith('state["v"].copy_(')
    else:
        assert not errors


def test_a_few_zeros_are_enough_where_they_throw_weights_away():
    model, report = trained(torch.float16, size=3.0)
    witness, _ = trained(torch.float32, size=3.0, watch=False)
    wide = torch.cat(
        [(a - b).detach().flatten() for a, b in zip(model.parameters(), witness.parameters(), strict=True)]
    )
    assert 0 < int((wide.abs() > 0.1).sum()) < wide.numel() / 2 or not wide.isfinite().all()
    first = next(one for one in report.findings if one.severity is Severity.ERROR)
    assert (first.code, first.sites[0].module) == ("AMP504", "SlimAdam.state")


@pytest.mark.parametrize("closure", [False, True])
def test_the_script_trains_as_it_would_alone_and_no_mode_is_left(closure):
    watched, _ = trained(torch.float16, closure=closure)
    alone, _ = trained(torch.float16, closure=closure, watch=False)
    assert all(
        torch.allclose(a, b, 0, 0, equal_nan=True)
        for a, b in zip(watched.parameters(), alone.parameters(), strict=True)
    )
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


class Trusting(torch.optim.Optimizer):
    """Half weights with masters in FP32; steps are as long as the weights are, whatever the gradient's length."""

    def __init__(self, params, *, wide):
        super().__init__(params, {"lr": 0.01})
        self.wide = wide

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if not self.state[p]:
                self.state[p]["master"] = p.detach().float()
            master, grad = self.state[p]["master"], p.grad.float() if self.wide else p.grad
            length = (grad * grad).sum().sqrt()
            master.sub_(p.grad.float() * (0.01 * master.norm() / length))
            p.copy_(master)


@pytest.mark.parametrize("wide", [False, True])
def test_weights_that_stand_still_as_their_gradients_length_overflows_are_an_error_at_its_line(wide):
    torch.manual_seed(0)
    model = nn.Linear(16, 8).half()
    first, optimizer = model.weight.detach().clone(), Trusting(model.parameters(), wide=wide)
    with ampcheck.watch(model, optimizer) as watching:
        for _ in range(6):
            loss = model(torch.randn(32, 16).half()).float().square().mean()
            optimizer.zero_grad()
            (loss * 1e4).backward()
            optimizer.step()
    assert torch.equal(first, model.weight) is not wide  # squares of 1e3 are infinite in float16
    found = [one for one in watching.report().findings if one.code == "AMP504"]
    assert bool(found) is not wide
    for one in found:
        assert one.origin.line == line_of(Trusting.step, "(grad * grad)")
        assert one.severity is Severity.ERROR
