"""Parts whose gradient is noise and tiny: an error where the optimizer divides a gradient by its own size."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.outcome import FAINT
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


class Mixture(nn.Module):
    """Two experts that hardly differ: what the gate learns from is a difference that bf16 rounds away."""

    def __init__(self, apart):
        super().__init__()
        self.gate, self.shared, self.out = nn.Linear(16, 2), nn.Linear(16, 32), nn.Linear(32, 8)
        self.offset = nn.Parameter(apart * torch.randn(2, 32))

    def forward(self, x):
        experts = self.shared(x).unsqueeze(1) + self.offset.to(torch.bfloat16)
        mixed = torch.einsum("be,bek->bk", self.gate(x).softmax(-1), experts)
        return self.out(mixed)


def trained(kind, apart):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Mixture(apart)
        optimizer = kind(model.parameters(), lr=1e-4)
        for _ in range(6):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(torch.randn(64, 16)).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return session.report("script.py")


@pytest.mark.parametrize(
    ("kind", "severity", "word"),
    [
        (torch.optim.AdamW, Severity.ERROR, Health.UNSAFE),
        (torch.optim.Adam, Severity.ERROR, Health.UNSAFE),
        (torch.optim.SGD, Severity.WARNING, Health.RISK),
    ],
)
def test_a_gate_that_learns_from_noise_counts_by_how_it_is_stepped(kind, severity, word):
    report = trained(kind, 1e-5)
    (found,) = (one for one in report.findings if one.code == "AMP501")
    assert found.severity is severity
    assert "off by" in found.message
    assert "gate" in found.message
    assert report.verdict.word is word
    settled = report.outcomes["settled"]
    assert not settled.harmed
    assert settled.grad_error < FAINT * 100


def test_a_gate_whose_experts_differ_learns():
    report = trained(torch.optim.AdamW, 1.0)
    assert report.verdict.word is Health.SAFE, report.verdict.sentence


@pytest.mark.parametrize(("weight", "dead"), [(3e-6, True), (1.0, False)])
def test_a_head_that_underflows_without_a_scaler_is_an_error_of_the_backward(weight, dead):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        stem, main, side = nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        optimizer = torch.optim.Adam([*stem.parameters(), *main.parameters(), *side.parameters()], lr=1e-3)
        for _ in range(5):
            with torch.autocast("cuda", torch.float16):
                h = torch.relu(stem(torch.randn(64, 8)))
                loss = main(h).float().square().mean() + weight * side(h).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert bool((side.weight.grad == 0).all()) is dead
    report = session.report("script.py")
    found = next(one for one in report.findings if one.code == "AMP408")
    assert found.severity is (Severity.ERROR if dead else Severity.WARNING)
    assert ("most of the gradient of side." in found.message) is dead
