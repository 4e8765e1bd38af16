"""Advice that takes more than one line: where autocast casts again, where numbers begin, what leads to what."""

import math

import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def errors_of(train):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        torch.manual_seed(0)
        train()
    assert not session.watcher.broken, session.watcher.not_seen
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]


class Fused(torch.autograd.Function):
    """Takes the gradients in the forward, of a mean over very many."""

    @staticmethod
    def forward(ctx, hidden, weight):
        logits = (hidden @ weight.t()).float()
        off = ((logits.sigmoid() - 0.5) / 1e9).to(hidden.dtype)
        to_hidden = off @ weight
        to_weight = off.t() @ hidden
        ctx.save_for_backward(to_hidden, to_weight.float())
        return F.softplus(logits).sum() / 1e9

    @staticmethod
    def backward(ctx, factor):
        to_hidden, to_weight = ctx.saved_tensors
        return (to_hidden.float() * factor).to(to_hidden.dtype), to_weight * factor


def test_a_cast_that_is_left_out_names_the_products_that_cast_again():
    def train():
        body, weight = nn.Linear(8, 16), nn.Parameter(torch.randn(32, 16))
        optimizer = torch.optim.Adam([*body.parameters(), weight], 1e-3)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(6):
            with torch.autocast("cuda", torch.float16):
                loss = Fused.apply(body(torch.randn(64, 8)), weight)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    first = errors_of(train)[0]
    assert (first.code, first.origin.line) == ("AMP103", line_of(Fused.forward, "off ="))
    names = [f":{line_of(Fused.forward, text)}" for text in ("to_hidden =", "to_weight =")]
    assert all(name in first.fix[0] for name in names)
    assert "autocast casts again" in first.fix[0]


class Phases(nn.Module):
    """Sines of phases that grow with a time in half precision."""

    def __init__(self):
        super().__init__()
        self.rate, self.out = nn.Parameter(torch.linspace(20, 40, 16)), nn.Linear(16, 1)

    def forward(self, x):
        time = torch.arange(64).to(torch.float16) * 1.37
        turns = time[:, None] * self.rate.half()
        return self.out(torch.sin(turns * x.half()))


def test_a_phase_is_computed_in_fp32_from_where_its_numbers_are_made():
    def train():
        model = Phases()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
        for _ in range(6):
            with torch.autocast("cuda", torch.float16):
                loss = (model(1 + torch.rand(64, 1)).float() - 1).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    first = errors_of(train)[0]
    assert first.code == "AMP501"
    begins, ends = (line_of(Phases.forward, text) for text in ("time =", "torch.sin("))
    assert first.origin.line == ends
    assert f":{begins} to this line" in " ".join(first.fix)


def test_a_norm_of_gradients_that_overflowed_comes_below_the_overflow():
    def train():
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        optimizer, scale = torch.optim.Adam(model.parameters(), 1e-3), 2.0**16
        for _ in range(6):
            x = torch.randn(64, 8)
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(x).float(), 3 * x[:, :4], reduction="sum")
            optimizer.zero_grad()
            (loss * scale).backward()
            for held in model.parameters():
                held.grad.div_(scale)
                torch.nan_to_num_(held.grad, nan=0.0, posinf=0.0, neginf=0.0)
            norm = torch.stack([held.grad.norm() for held in model.parameters()]).norm()
            if torch.isfinite(norm):
                optimizer.step()

    errors = errors_of(train)
    assert errors[0].code == "AMP202"
    assert not [one for one in errors if one.origin is not None and one.origin.op == "linalg_vector_norm"]


def slopes(out, x):
    first = torch.autograd.grad(out[:, 0].sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(out[:, 1].sum(), x, create_graph=True)[0]
    return first + second


def test_gradients_that_are_zero_at_two_lines_name_each_other():
    def train():
        model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(6):
            x = (1e-3 * torch.randn(64, 2)).requires_grad_()
            with torch.autocast("cuda", torch.float16):
                loss = (slopes(1e-8 * model(1e3 * x), x) * 1e5 - math.pi).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    found = [one for one in errors_of(train) if one.code == "AMP408"]
    lines = [line_of(slopes, text) for text in ("first =", "second =")]
    assert [one.origin.line for one in found] == lines
    for one, other in zip(found, reversed(lines), strict=True):
        assert one.fix[-1].endswith(f":{other}")
