"""An overflow whose result would fit: what enters the operation does not, once autocast has cast it."""

import pytest
import torch
from torch import nn

import ampcheck


class Net(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.stem, self.head, self.gain = nn.Linear(8, 8), nn.Linear(8, 2), gain

    def forward(self, x):
        return self.head(torch.exp(self.stem(x)).clamp(max=1.0) * 1e5 * self.gain)  # exp is in FP32


@pytest.mark.parametrize(("gain", "inside"), [(1.0, True), (0.6, False)])
def test_an_overflow_of_what_enters_is_not_said_of_the_result(gain, inside):
    torch.manual_seed(0)
    model, x = Net(gain), torch.randn(4, 8)
    nn.init.zeros_(model.stem.weight)
    nn.init.constant_(model.stem.bias, 1.0)
    nn.init.constant_(model.head.weight, 0.01 if inside else 1.0)
    entered = []
    model.head.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    out = model(x)
    assert (float(entered[0].detach().abs().max()) > 65504) is inside  # plain torch, in FP32
    assert (float(out.detach().abs().max()) > 65504) is not inside
    model.head._forward_pre_hooks.clear()
    report = ampcheck.check(model, x, lambda net, batch: net(batch).mean())
    (found,) = (one for one in report.findings if one.code == "AMP101")
    assert ("an input that is cast" in found.message) is inside
    assert ("is the first to give inf" in report.verdict.sentence) is inside
    assert ("exceeds 65504" in report.verdict.sentence) is not inside
