"""States in half precision that own optimizers keep, that change now and then, or that keep a remainder."""

import pytest
import torch
from torch import nn

import ampcheck
from ampcheck.values.findings import Severity
from ampcheck.values.verdict import Health


class Decaying(torch.optim.Optimizer):
    """Divides by the root of an average of squares, which is kept in a dtype of its own."""

    def __init__(self, params, dtype, beta):
        super().__init__(params, {"lr": 0.01})
        self.dtype, self.beta = dtype, beta

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["t"], state["v"] = 0, torch.zeros_like(p, dtype=self.dtype)
            state["t"] += 1
            grad = p.grad.to(self.dtype)
            state["v"].mul_(self.beta).addcmul_(grad, grad, value=1 - self.beta)
            root = (state["v"].float() / (1 - self.beta ** state["t"])).sqrt()
            p.sub_(0.01 * p.grad / (root + 1e-6))


def loop(make, after, *, steps=240, watch=True, same=False):
    """Train; return the optimizer, and the report where the training is watched."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer, first = make(model), torch.randn(64, 8)

    def train():
        for step in range(steps):
            x = first if same else torch.randn(64, 8)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = 10 * nn.functional.mse_loss(model(x).float(), 3 * x[:, :4])
            loss.backward()
            optimizer.step()
            after(model, step)

    if not watch:
        train()
        return optimizer, None
    with ampcheck.watch(model, optimizer) as watching:
        train()
    return optimizer, watching.report()


def errors_of(report):
    return [(one.code, one.sites[0].module) for one in report.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("dtype", "beta", "lost"),
    [(torch.bfloat16, 0.999, True), (torch.bfloat16, 0.9, False), (torch.float16, 0.99, False)],
)
def test_an_average_of_squares_that_cannot_decay_is_an_error_of_its_optimizer(dtype, beta, lost):
    def made(kept):
        return lambda model: Decaying(model.parameters(), kept, beta)

    optimizer, report = loop(made(dtype), lambda *_: None, steps=600, same=True)
    witness, _ = loop(made(torch.float32), lambda *_: None, steps=600, same=True, watch=False)
    held, right = (
        sum(float(s["v"].float().sum()) for s in one.state.values()) for one in (optimizer, witness)
    )
    assert (held > 1.5 * right) is lost
    assert errors_of(report) == ([("AMP504", "Decaying.state")] if lost else [])


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_state_that_changes_now_and_then_is_not_passed_over(dtype):
    base = torch.ones(64, dtype=dtype)

    def merge(_, step):
        if step % 5 == 4:
            base.add_(1e-3)

    _, report = loop(sgd, merge)
    assert float(base[0]) == pytest.approx(1.0 if dtype is torch.bfloat16 else 1.048, rel=1e-4)
    assert (report.verdict.word is Health.SAFE) is (dtype is torch.float32)


@pytest.mark.parametrize("kept", [True, False])
def test_what_rounding_leaves_for_the_next_time_is_no_state_of_its_own(kept):
    torch.manual_seed(1)
    total = torch.ones(64, 8, dtype=torch.bfloat16)
    left = torch.zeros(64, 8, dtype=torch.bfloat16)
    wide = total.double()

    def add(_, step):
        change = 2e-3 * (1.0 + torch.rand(64, 8, generator=torch.Generator().manual_seed(step)))
        wide.add_(change)
        whole = total.float() + left.float() + change
        total.copy_(whole)
        if kept:
            left.copy_(whole - total.float())

    _, report = loop(sgd, add)
    apart = float((total.double() - wide).norm() / (wide - 1.0).norm())
    assert (apart < 0.02) is kept
    assert errors_of(report) == ([] if kept else [("AMP504", "")])
    assert (report.verdict.word is Health.SAFE) is kept
