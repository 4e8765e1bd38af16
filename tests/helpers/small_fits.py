"""A small model, and a step that fits one to a linear truth under autocast."""

import torch
from torch import nn


def network():
    """Return the model."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def fits(model, optimizer, truth):
    """Take a step on numbers that are drawn anew."""
    x = torch.randn(32, len(truth))
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    loss = (out.float() - x @ truth).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
