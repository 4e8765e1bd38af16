"""Modules and lines in FP32: what they compute, and that nothing stays behind."""

import inspect

import pytest
import torch
from torch import nn

from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.promote import in_fp32
from ampcheck.observe.source import shown_path


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.first(x)
        squared = hidden * hidden
        return self.second(squared)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def half(net, x, modules=(), lines=()):
    with cuda_casting(), torch.autocast("cpu", dtype=torch.float16), in_fp32(net, modules, lines):
        return net(x)


def line_of(text):
    source, start = inspect.getsourcelines(Net.forward)
    return shown_path(__file__), start + next(i for i, line in enumerate(source) if text in line)


def test_a_promoted_module_computes_as_in_fp32(net):
    x = torch.randn(4, 8)
    with cuda_casting(), torch.autocast("cpu", dtype=torch.float16):
        hidden = net.first(x)
        assert hidden.dtype is torch.float16
    out = half(net, x, ["second"])
    squared = (hidden * hidden).float()
    assert out.dtype is torch.float32
    assert torch.equal(out, nn.functional.linear(squared, net.second.weight, net.second.bias))


def test_a_promoted_line_computes_as_in_fp32(net):
    x = 400 * torch.ones(1, 8)
    with torch.no_grad():
        net.first.weight.fill_(0.125)
        net.first.bias.zero_()
    assert not half(net, x).isfinite().all()  # 400 squared is beyond fp16
    with torch.no_grad():
        net.second.weight.fill_(2.0**-12)
    line = line_of("hidden * hidden")
    assert (
        not half(net, x, lines=[line_of("self.second")]).isfinite().all()
    )  # a module called there is not the line
    assert not half(net, x, ["second"]).isfinite().all()
    assert torch.allclose(half(net, x, ["second"], [line]), net(x), rtol=1e-3)


def test_all_promoted_equals_fp32_bit_for_bit(net):
    x = torch.randn(4, 8)
    assert torch.equal(half(net, x, [""]), net(x))


def test_nothing_stays_behind(net):
    before = {name: dict(module.__dict__) for name, module in net.named_modules()}
    with pytest.raises(RuntimeError, match="shape"):
        half(net, torch.randn(4, 7), ["first", "second"])
    half(net, torch.randn(4, 8), ["first"])
    after = {name: dict(module.__dict__) for name, module in net.named_modules()}
    assert before == after


def test_an_unknown_module_is_named(net):
    with pytest.raises(ValueError, match="'third'"):
        half(net, torch.randn(4, 8), ["third"])
