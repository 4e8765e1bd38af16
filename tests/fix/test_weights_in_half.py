"""Weights in float16: GradScaler refuses their gradients, so no word of the report has a loss scale."""

import pytest
import torch
from torch import nn

from ampcheck import check
from ampcheck.renderers.terminal import render as terminal
from ampcheck.values.settings import Settings


def squares(model, batch):
    return model(batch).float().square().mean()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("settings", [Settings(), Settings(verify=False)])
def test_weights_in_float16_are_audited_without_a_loss_scale(settings, frozen):
    """Where those that are trained are FP32, the scale is where GradScaler starts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8).half(), nn.Linear(8, 1))
    model[0].requires_grad_(not frozen)
    report = check(model, torch.randn(4, 8), squares, settings=settings)
    assert report.log2_scale == (16 if frozen else 0)
    assert ("loss scale 2^16" in terminal(report)) is frozen
    assert ("fp16 without a loss scale" in report.verdict.sentence) is not frozen
