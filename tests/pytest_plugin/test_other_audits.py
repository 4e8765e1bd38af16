"""Forwards, cast weights and recipes as tests, each held against a baseline of its own."""

import json

import pytest
import torch

from ampcheck import check

SUITE = """
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 1e4 ** -(torch.arange(8) / 8.0), persistent=False)

    def forward(self, positions):
        return (positions[:, None].float() * self.inv_freq.float()).cos()


class Rotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary, self.proj, self.head = Rotary(), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, positions):
        return self.head(self.proj(x) * self.rotary(positions).to(x.dtype))


def rotated(amp_audit, **given):
    torch.manual_seed(0)
    batch = {"x": torch.randn(6, 8), "positions": torch.arange(6000, 6006)}
    return amp_audit(Rotated(), batch, precision="bf16", **given)


def test_cast(amp_audit):
    audited = rotated(amp_audit, mode="infer", cast="weights")
    assert audited.report.plan.fp32_modules == ("rotary",)
    audited.assert_safe()


def test_autocast(amp_audit):
    rotated(amp_audit, mode="infer", cast="autocast").assert_safe()


def test_recipe(amp_audit):
    torch.manual_seed(0)
    loss = lambda model, x: model(x).float().square().mean()
    audited = amp_audit(nn.Linear(32, 32), torch.randn(32, 32), loss, precision="fp8:ao-rowwise")
    assert audited.report.plan.recipe == "ao-rowwise"
    audited.assert_safe()
"""


@pytest.fixture(scope="session")
def torch_is_loaded():
    check(torch.nn.Linear(2, 2), torch.randn(2, 2), lambda model, batch: model(batch).square().sum())


def test_each_way_passes_or_fails_and_has_its_own_baseline(pytester, torch_is_loaded):
    pytester.makepyfile(test_ways=SUITE)
    words = ("-p", "no:cacheprovider", "--ampcheck-baseline", "base.json")
    result = pytester.runpytest(*words, "--ampcheck-update-baseline", "--ampcheck-reason", "known")
    saved = json.loads((pytester.path / "base.json").read_text())["audits"]
    assert set(saved) == {
        "test_ways.py::test_cast bf16 weights inference",
        "test_ways.py::test_autocast bf16 inference",
        "test_ways.py::test_recipe fp8:ao-rowwise",
    }, str(result.stdout)
    assert saved["test_ways.py::test_cast bf16 weights inference"]["plan"]["way"] == "cast-back"
    assert saved["test_ways.py::test_recipe fp8:ao-rowwise"]["plan"]["way"] == "ao-rowwise"
    pytester.runpytest(*words).assert_outcomes(passed=3)  # what was accepted, with a reason, passes
    plain = pytester.runpytest("-p", "no:cacheprovider")
    plain.assert_outcomes(passed=2, failed=1)
    assert "AMP505" in str(plain.stdout)
