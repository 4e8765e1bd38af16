"""FP8 in scripts that no report judges: casts of their own, torch._scaled_mm, TransformerEngine's layers.

Witnesses: the casts themselves, and a package that stands in for TransformerEngine, which needs a GPU.
"""

import sys
import types

import pytest
import torch
from torch import nn

from ampcheck.diagnose.gaps import told_gaps
from ampcheck.observe.fp8.in_use import in_use
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


class Product(torch.autograd.Function):
    """A product in FP8, by the call that libraries make."""

    @staticmethod
    def forward(ctx, x, w):
        sx, sw = x.abs().max() / 448, w.abs().max() / 448
        xq, wq = (x / sx).to(torch.float8_e4m3fn), (w / sw).to(torch.float8_e4m3fn)
        ctx.save_for_backward(x, w)
        return torch._scaled_mm(xq, wq.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16).float()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


class Linear(nn.Linear):
    def forward(self, x):
        return Product.apply(x, self.weight) + self.bias


def trained(model, x, loss=lambda out: out.square().mean()):
    """Return the report of two steps, watched."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(Schedule(first=2, every=0, beside="all"))
    with session.watching():
        for _ in range(2):
            loss(model(x)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return session.report("train.py")


def test_operands_and_product_are_measured_as_they_are():
    torch.manual_seed(0)
    x = torch.randn(32, 64)
    x[0, 0] = 3e5  # nearly all else becomes zero in e4m3
    model = nn.Sequential(Linear(64, 48))
    weight, held = model[0].weight.detach().clone(), x / (x.abs().max() / 448)
    report = trained(model, x)
    [layer] = report.in_use
    assert (layer.module, layer.library, layer.judged) == ("model.0", "the script's own casts", False)
    zero = float(((held.to(torch.float8_e4m3fn).float() == 0) & (held != 0)).double().mean())
    both = zero * x.numel() / (x.numel() + weight.numel())
    assert f"{100 * both:.0f} % become zero, 0 % are cut off" in layer.note
    sx, sw = x.abs().max() / 448, weight.abs().max() / 448
    low = torch._scaled_mm(
        held.to(torch.float8_e4m3fn),
        (weight / sw).to(torch.float8_e4m3fn).t(),
        scale_a=sx,
        scale_b=sw,
        out_dtype=torch.bfloat16,
    )
    wide = (held * sx).bfloat16() @ (weight / sw * sw).bfloat16().t()
    off = float((low.double() - wide.double()).norm() / wide.double().norm())
    assert "product in the forward, off by" in layer.note
    assert abs(float(layer.note.rpartition("off by ")[2].partition(" %")[0]) - 100 * off) < 0.3
    [finding] = [one for one in report.findings if one.code == "AMP706"]
    assert layer.note in finding.message
    assert report.verdict.word != Health.SAFE


def test_what_is_cut_off_is_counted():
    class Overflows(nn.Linear):
        def forward(self, x):
            held = (x * 100).to(torch.float8_e4m3fn).float() / 100
            return nn.functional.linear(held.nan_to_num(4.48), self.weight, self.bias)

    torch.manual_seed(0)
    x = 10 * torch.rand(16, 8)
    report = trained(nn.Sequential(Overflows(8, 4)), x)
    [layer] = report.in_use
    cut = float(((100 * x) > 464).double().mean())
    assert f"{100 * cut:.0f} % are cut off" in layer.note


@pytest.fixture
def engine(monkeypatch):
    """Return a package that has TransformerEngine's names."""
    package, pytorch = types.ModuleType("transformer_engine"), types.ModuleType("transformer_engine.pytorch")

    class LayerNormMLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1_weight = nn.Parameter(0.1 * torch.randn(8, 8))

        def forward(self, x):
            return x @ self.fc1_weight

    class LayerNorm(nn.LayerNorm):
        pass

    class DelayedScaling:
        pass

    class FP8GlobalStateManager:
        @classmethod
        def is_fp8_enabled(cls):
            return True

        @classmethod
        def get_fp8_recipe(cls):
            return DelayedScaling()

    for kind in (nn.Linear, LayerNormMLP, LayerNorm):
        made = type(kind.__name__, (kind,), {"__module__": "transformer_engine.pytorch.module"})
        setattr(pytorch, kind.__name__, made)
    quantization = types.ModuleType("transformer_engine.pytorch.quantization")
    quantization.FP8GlobalStateManager = FP8GlobalStateManager
    for module in (package, pytorch, quantization):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return pytorch


def test_transformer_engines_layers_are_named_with_their_recipe_and_never_safe(engine):
    torch.manual_seed(0)
    model = nn.Sequential(engine.Linear(8, 8), engine.LayerNorm(8), engine.LayerNormMLP(), nn.Linear(8, 4))
    assert [layer.module for layer in in_use(model, "net")] == ["net.0", "net.2"]

    def loss(out):
        with torch.autocast("cpu", torch.bfloat16):
            return model(out.detach().new_ones(4, 8)).float().square().mean()

    report = trained(model, torch.randn(4, 8), loss)
    assert report.precision == "bf16"
    [finding] = [one for one in report.findings if one.code == "AMP706"]
    assert "2 layers train in FP8 by TransformerEngine" in finding.message
    assert "its autocast asks for DelayedScaling, which is emulated as te-delayed" in finding.message
    assert any("what FP8 does in model.0, model.2 was not judged" in gap for gap in told_gaps(report))
    assert report.verdict.word != Health.SAFE
