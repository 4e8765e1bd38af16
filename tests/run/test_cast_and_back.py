"""Numbers put into half precision that do not fit, and are read in FP32 again: the overflow is where they are put."""

import inspect

import pytest
import torch
from torch import nn

from ampcheck import check
from ampcheck.values.verdict import Health


def copied(wide, half):
    half.copy_(wide)
    return half


def assigned(wide, half):
    half[:, 2:] = wide[:, 2:]
    return half


def scattered(wide, half):
    half.index_put_((torch.arange(16),), wide.to(half.dtype))
    return half


def cast(wide, half):
    return wide.to(half.dtype)


class Kept(nn.Module):
    """Keeps large numbers in a tensor of its layer's precision, and divides them again in FP32."""

    def __init__(self, put):
        super().__init__()
        self.put, self.a, self.b = put, nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        out = self.a(x)
        half = self.put(out.float() * self.size, torch.zeros(16, 8, dtype=out.dtype))
        return self.b((half.float() / self.size).to(out.dtype))


@pytest.mark.parametrize("fits", [False, True])
@pytest.mark.parametrize("put", [copied, assigned, scattered, cast])
def test_the_overflow_is_where_numbers_are_put_into_half_precision(put, fits):
    torch.manual_seed(0)
    model = Kept(put)
    model.size = 100.0 if fits else 1e6
    report = check(model, torch.randn(16, 8), lambda model, x: (model(x).float() - 1).square().mean())
    if fits:
        assert report.verdict.word is Health.SAFE
        return
    _, start = inspect.getsourcelines(put)
    (found,) = [one for one in report.findings if one.severity == "error"]
    assert (found.code, found.origin.line) == ("AMP101", start + 1)
    wide = model.a(torch.randn(16, 8)).float().abs() * 1e6
    assert torch.finfo(torch.float16).max < wide.max()
    assert f":{start + 1})" in report.verdict.sentence
