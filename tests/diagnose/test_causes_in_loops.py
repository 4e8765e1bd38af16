"""Loops whose every step overflows: what is at fault comes first, and only what would heal is advised."""

from collections import defaultdict

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import _refresh_per_optimizer_state

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


class Again(torch.autograd.Function):
    """Runs a function once more in the backward."""

    @staticmethod
    def forward(ctx, part, x):
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.part(x)
        return None, torch.autograd.grad(out, x, grad.to(out.dtype))[0]


class Squares(nn.Module):
    """Squares what is too large for fp16 to be squared."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        held = 1000 * self.inner(x)
        return torch.log1p((held * held).mean(-1, keepdim=True)) * x


class Recomputed(nn.Module):
    """Runs a part in FP32, and again in the backward."""

    def __init__(self):
        super().__init__()
        self.first, self.part, self.last = nn.Linear(8, 8), Squares(), nn.Linear(8, 2)

    def forward(self, x):
        held = self.first(x)
        with torch.autocast("cuda", enabled=False):
            held = Again.apply(self.part, held.float())
        return self.last(held)


class Distance(nn.Module):
    """How far outputs are from the first: for that the root of a zero, kept from it by an eps."""

    def __init__(self, eps):
        super().__init__()
        self.inner, self.eps = nn.Linear(8, 4), eps

    def forward(self, x):
        out = self.inner(x)
        apart = out - out[:1]
        return ((apart * apart).mean(-1) + self.eps).sqrt()


class Summed(nn.Module):
    """Holds a sum in fp16 that it has no room for, and trains what comes behind."""

    def __init__(self):
        super().__init__()
        self.sums, self.last = Hub(), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.log1p(self.sums(x).float()))


class Hub(nn.Module):
    """Adds up in fp16."""

    def forward(self, x):
        held = (5000 + x.abs()).half()
        return torch.zeros(1, x.shape[1], dtype=held.dtype, device=x.device).index_add_(
            0, torch.zeros(len(x), dtype=torch.long, device=x.device), held
        )


class Static(torch.amp.GradScaler):
    """Keeps its scale."""

    def update(self, new_scale=None):
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)


def trained(model, *, scaler=torch.amp.GradScaler, inside=False, gain=1.0, scale=2.0**10, steps=24):
    """Return the findings on a loop, by code, in their order."""
    session = Session(Schedule(first=2, every=8), as_cuda=True)
    with session.watching():
        torch.manual_seed(0)
        model = model.cuda()
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), scaler("cuda", init_scale=scale)
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8).cuda()).float().square().mean() * gain
                if inside:
                    scaler.scale(loss).backward()
            if not inside:
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert not session.watcher.broken, session.watcher.not_seen
    return {finding.code: finding for finding in session.report("loop").findings}


def test_what_a_backward_inside_autocast_runs_again_in_fp16_is_the_cause_of_its_overflow():
    found = trained(Recomputed(), inside=True)
    first = next(iter(found.values()))
    assert (first.code, first.severity) == ("AMP407", Severity.ERROR)
    assert "mul in model.part (Squares)" in first.message
    assert [line.partition(" ")[0] for line in first.follows] == ["AMP202"]
    assert "predicted" not in first.follows[0]
    assert not found["AMP206"].fix  # no layer in FP32 heals it
    outside = trained(Recomputed())
    assert not {"AMP202", "AMP206", "AMP407"} & set(outside)


def test_an_eps_that_is_zero_in_fp16_is_the_cause_of_what_no_scale_heals():
    found = trained(Distance(1e-8))
    first = next(iter(found.values()))
    assert (first.code, first.severity) == ("AMP104", Severity.ERROR)
    assert first.follows
    assert "none heals it" in first.follows[0]
    assert any(one.startswith("AMP206 ") for one in first.follows)  # one line makes both
    assert first.fix == (
        'with torch.autocast("cuda", enabled=False):',
        "    ...  # this line, with .float() on what is read",
    )
    assert not {"AMP202", "AMP206"} & set(trained(Distance(1e-2)))


def test_what_fp32_has_too_is_not_to_be_kept_in_fp32():
    assert not trained(Distance(0.0))["AMP206"].fix


def test_the_layer_named_is_the_one_that_overflowed_first():
    found = trained(Summed())
    assert next(iter(found)) == "AMP101"
    assert (
        "model.sums in FP32" in found["AMP206"].fix[1]
    )  # and not the layer whose gradient is looked at first


def test_a_scale_that_torch_has_halved_down_to_zero_fell():
    found = trained(Distance(0.0), scale=2.0**16, steps=180)["AMP206"]
    assert found.message.startswith("the loss scale fell from 2^16 to ")
    assert not found.fix


@pytest.mark.parametrize("scaler", [Static, torch.amp.GradScaler])
def test_a_scale_that_no_skip_lowers_stays_where_it_is(scaler):
    found = trained(nn.Linear(8, 4), scaler=scaler, gain=2.0**8, scale=2.0**16)
    if scaler is not Static:
        assert "AMP206" not in found
        return
    first = found["AMP206"]
    assert first.severity is Severity.ERROR
    assert "stays at 2^16, Static.update() never lowers it: 24 steps of 24 skipped" in first.message
    assert "is the largest that is predicted to fit" in first.follows[0]
    assert first.fix[0] == "class Static(torch.amp.GradScaler):"
