"""One tiny model for each rule: what is wrong with it, and the severity that this deserves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ampcheck import check
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings


@dataclass(frozen=True)
class Case:
    """A step with one thing wrong."""

    forward: Callable[[nn.Module, torch.Tensor], torch.Tensor]  #: from hidden activations to scores
    severity: str
    precision: str = "fp16"
    loss_factor: float = 1.0
    dtype: torch.dtype = torch.float32  #: of the parameters
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    log2_scale: int | None = None


class Net(nn.Module):
    """A layer, something in between, a layer."""

    def __init__(self, case: Case | None = None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 4)
        self.branch = nn.Linear(32, 4, bias=False)
        self.case = case

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x.to(self.first.weight.dtype)).tanh()
        return self.last(hidden) if self.case is None else self.case.forward(self, hidden)


def plain(net, hidden):
    return net.last(hidden)


def squares(net, hidden):
    large = hidden * 500
    return net.last(large / (large * large).mean(-1, keepdim=True).sqrt())


def log_of_flushed(net, hidden):
    probability = (net.branch(hidden) * 20 - 40).sigmoid()
    return net.last(hidden) - probability.log() * 0.01


def eps_of_zero(net, hidden):
    peak = functional.relu(hidden).amax(-1, keepdim=True) * (hidden[:, :1] > 0)
    return net.last(hidden * (peak + 1e-8))


def far_positions(net, hidden):
    return net.last(((hidden + 4000) - 4000).sin())


def counted_in_half(net, hidden):
    ones = torch.ones(9000, dtype=hidden.dtype)
    count = torch.zeros(2, dtype=hidden.dtype).index_add(0, torch.zeros(9000, dtype=torch.long), ones)
    return net.last(hidden) + 1e-6 * count.float().max()


def two_scales(net, hidden):
    return 5e3 * net.last(hidden) + 1e-9 * net.branch(hidden)


def nearly_too_large(net, hidden):
    return net.last((hidden * 45_000) * 1e-4)


def scattered(net, hidden):
    written = torch.zeros(hidden.shape).scatter(0, torch.zeros(hidden.shape, dtype=torch.long), hidden)
    return net.last(hidden + written)


def back_and_forth(net, hidden):
    for _ in range(4):
        hidden = hidden.float().to(hidden.dtype)
    return net.last(hidden)


def slow(parameters):
    return torch.optim.SGD(parameters.parameters(), lr=1e-7)


CASES = {
    "AMP101": Case(squares, "error"),
    "AMP102": Case(nearly_too_large, "warning"),
    "AMP103": Case(log_of_flushed, "error"),
    "AMP104": Case(eps_of_zero, "warning"),
    "AMP201": Case(two_scales, "error"),
    "AMP202": Case(plain, "error", loss_factor=1e5),
    "AMP203": Case(two_scales, "warning"),
    "AMP204": Case(plain, "error", loss_factor=1e-6),
    "AMP205": Case(plain, "warning", precision="bf16", log2_scale=10),
    "AMP301": Case(scattered, "error"),
    "AMP302": Case(plain, "warning", dtype=torch.float16),
    "AMP303": Case(back_and_forth, "info"),
    "AMP501": Case(far_positions, "error"),
    "AMP502": Case(counted_in_half, "warning"),
    "AMP504": Case(plain, "error", precision="bf16", dtype=torch.bfloat16, optimizer=slow),
}


def report(case: Case | None, precision: str = "") -> Report:
    """Return the audit of a case, or of the healthy model."""
    torch.manual_seed(0)
    model = Net(case)
    factor = 1.0
    if case is not None:
        model.to(case.dtype)
        factor = case.loss_factor
    batch = (torch.randn(48, 8), torch.randint(4, (48,)))

    def loss(net, given):
        return factor * functional.cross_entropy(net(given[0]).float(), given[1])

    chosen = precision or (case.precision if case is not None else "fp16")
    settings = Settings(chosen, case.log2_scale if case is not None else None, budget=20.0)
    return check(
        model, batch, loss, settings=settings, optimizer=case.optimizer if case is not None else None
    )
