"""Attentions whose mask no half can hold: each of them is in the plan, and nothing around them."""

from itertools import combinations

import pytest
import torch
from torch import nn

from ampcheck import check
from ampcheck.values.findings import Severity
from ampcheck.values.plan import Tried


class Attention(nn.Module):
    """Hides later tokens behind a number that is asked of FP32, or behind one that fp16 holds."""

    def __init__(self, hidden):
        super().__init__()
        self.q, self.k, self.v, self.hidden = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24), hidden

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 24**0.5
        later = torch.ones(6, 6, dtype=torch.bool).triu(1)
        return scores.masked_fill(later, self.hidden).softmax(-1) @ self.v(x)


class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(24), Attention(hidden)
        self.mlp = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.backbone = nn.Sequential(*map(Block, hidden))
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.backbone(x).mean(1))


WIDE, NARROW = torch.finfo(torch.float32).min, -1e4


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def step(hidden):
    torch.manual_seed(0)
    return Net(hidden), (torch.randn(4, 6, 24), torch.tensor([0, 1, 2, 0]))


def smallest_that_runs(hidden):
    """Return the smallest sets of attentions that let torch's own fp16 autocast of a CPU run, in FP32."""

    def runs(chosen):
        model, batch = step(hidden)
        for at in chosen:
            inner = model.backbone[at].attention
            inner.forward = torch.autocast("cpu", enabled=False)(inner.forward)
        try:
            with torch.autocast("cpu", torch.float16):
                loss(model, batch).backward()
        except RuntimeError:
            return False
        return True

    every = range(len(hidden))
    sizes = ([c for c in combinations(every, size) if runs(c)] for size in range(len(hidden) + 1))
    return next(found for found in sizes if found)


@pytest.mark.parametrize("hidden", [(WIDE, WIDE), (WIDE, NARROW, WIDE)], ids=["both of 2", "2 of 3"])
def test_each_attention_that_no_half_holds_is_in_the_plan_and_nothing_around_it(hidden):
    (needed,) = smallest_that_runs(hidden)
    names = tuple(f"backbone.{at}.attention" for at in needed)
    model, batch = step(hidden)
    report = check(model, batch, loss)
    assert [(one.code, one.origin.module) for one in report.findings if one.severity is Severity.ERROR] == [
        ("AMP301", names[0])
    ]
    assert report.plan.precision == "fp16"
    assert report.plan.fp32_modules == names
    assert report.plan.fp32_lines == ()
    assert {claim.tried for claim in report.claims} == {Tried.CONFIRMED}
    planned = report.outcomes["planned"]
    assert planned.finite
    assert not planned.harmed
    assert planned.grad_error < 0.01
    again = check(report.plan.apply(model), batch, loss)
    assert again.worst is not Severity.ERROR
    assert again.plan.fp32_modules == ()
