"""Fused attention, which knows half precision only, has a reference in FP32; what has none keeps the scale."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ampcheck.observe.reference import attention
from ampcheck.observe.reference.attention import beside, in_fp32
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule

FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention.default
CUDNN_BACKWARD = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
EFFICIENT_BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "more keys, causal": {"is_causal": True, "keys": 11},
    "shared keys": {"heads": 2},
    "a scale": {"scale": 0.3},
    "a bias": {"bias": (2, 4, 7, 7)},
    "a bias for all queries": {"bias": (2, 1, 1, 7)},
}


def inputs(keys=7, heads=4, bias=None, **given):
    torch.manual_seed(0)
    query, grad = torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 5)
    key, value = torch.randn(2, heads, keys, 8), torch.randn(2, heads, keys, 5)
    return query, key, value, grad, None if bias is None else torch.randn(bias), given


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_it_is_torchs_attention(name, blocks, monkeypatch):
    """The witness is torch's composite, and autograd through it."""
    query, key, value, grad, bias, given = inputs(**CASES[name])
    monkeypatch.setattr(attention, "_MOST_SCORES", query[..., 0, 0].numel() * key.shape[-2] * -(-7 // blocks))
    leaves = [one.double().requires_grad_() for one in (query, key, value)]
    exact = nn.functional.scaled_dot_product_attention(
        *leaves, None if bias is None else bias.double(), enable_gqa=key.shape[1] != 4, **given
    )
    wanted = [exact.detach(), *torch.autograd.grad(exact, leaves, grad.double())]
    causal, scale = given.get("is_causal", False), {"scale": given.get("scale")}
    if bias is None:
        out = in_fp32(FLASH, (query, key, value, 0.0, causal), scale)[0]
        rest = (out, out, None, None, 7, 7, 0.0, causal, None, None)
        found = [out, *in_fp32(FLASH_BACKWARD, (grad, query, key, value, *rest), scale)]
    else:
        out = in_fp32(CUDNN, (query, key, value, bias, True, 0.0, causal), scale)[0]
        rest = (out, out, None, None, bias, None, None, 7, 7, 0.0, causal)
        found = [out, *in_fp32(CUDNN_BACKWARD, (grad, query, key, value, *rest), scale)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def dropping(query, key, value, mask):
    weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
    return weights * mask / 0.75 @ value


@pytest.mark.parametrize("far", [0.0, 1e-3, 0.1])
@pytest.mark.parametrize(
    "func", [(FLASH, FLASH_BACKWARD), (EFFICIENT, EFFICIENT_BACKWARD)], ids=["flash", "efficient"]
)
def test_where_numbers_are_dropped_fp32_is_as_far_away_as_without(func, far):
    """The witness knows what is dropped. What half precision did to the inputs shows in FP32's results."""
    query, key, value, grad, *_ = inputs()
    mask = (torch.rand(2, 4, 7, 7) > 0.25).float()
    wide = [one + far * torch.randn_like(one) for one in (query, key, value)]
    found = {}
    for name, given, scale in (("low", (query, key, value), 1024.0), ("wide", wide, 1.0)):
        leaves = [one.clone().requires_grad_() for one in given]
        out = dropping(*leaves, mask)
        found[name] = [out.detach(), *torch.autograd.grad(out, leaves, grad * scale)]
    forward, backward = func
    given = [
        (*ones, None, True, 0.25) if forward is EFFICIENT else (*ones, 0.25)
        for ones in ((query, key, value), wide)
    ]
    mine = list(beside(forward, *given, {}, (found["low"][0],), 1.0))
    given = [
        (g, *ones, None, None, None, None, None, 0.25, [True] * 4)
        if forward is EFFICIENT
        else (g, *ones, None, None, None, None, 7, 7, 0.25, False, None, None)
        for g, ones in ((grad * 1024.0, (query, key, value)), (grad, wide))
    ]
    mine += beside(backward, *given, {}, tuple(found["low"][1:]), 1 / 1024)
    lows = [found["low"][0], *(one / 1024 for one in found["low"][1:])]
    for one, low, exact in zip(mine, lows, found["wide"], strict=True):
        if not far:
            torch.testing.assert_close(one, low, rtol=1e-5, atol=1e-6)
            continue
        away, off = (exact - low).norm(), (one - exact).norm()
        assert off < 0.9 * away  # nearer than the script's own
        assert 0.5 * away < (one - low).norm() < 1.5 * away  # and as far away from it


def test_any_other_operation_runs_as_it_is():
    assert in_fp32(torch.ops.aten.add.Tensor, (torch.ones(2), 1.0), {}).tolist() == [2.0, 2.0]
    assert in_fp32(lambda one: one + 1, (1,), {}) == 2


def train(scale, monkeypatch, *, refuses):
    """Train a small network; return the errors and what is said of operations without a reference."""
    import ampcheck.observe.reference.effects as module

    def refusing(func, args, kwargs):
        if func._schema.name in refuses:
            raise NotImplementedError("half precision only")
        return in_fp32(func, args, kwargs)

    monkeypatch.setattr(module, "in_fp32", refusing)
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.ModuleDict({"a": nn.Linear(8, 32), "norm": nn.LayerNorm(32), "b": nn.Linear(32, 4)})
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(6):
            optimizer.zero_grad()
            x = torch.randn(64, 8)
            with torch.autocast("cpu", torch.float16):
                hidden = model["norm"](model["a"](x))
                out = model["b"](nn.functional.gelu(hidden) + hidden)
                loss = nn.functional.mse_loss(out.float(), x[:, :4])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    report = session.report("script.py")
    return SimpleNamespace(
        errors=[one.code for one in report.findings if one.severity is Severity.ERROR],
        taken=[name for name in report.low.not_audited if "takes from the script" in name],
    )


@pytest.mark.parametrize("scale", [1.0, 2.0**14])
def test_a_gradient_without_a_reference_is_no_error_of_its_scale(scale, monkeypatch):
    """Beside a gradient that has one it would be off by the loss scale."""
    seen = train(scale, monkeypatch, refuses={"aten::gelu", "aten::gelu_backward"})
    assert len(seen.taken) == 2
    assert not seen.errors


def test_with_all_references_nothing_is_taken(monkeypatch):
    seen = train(2.0**14, monkeypatch, refuses=())
    assert not seen.taken
    assert not seen.errors
