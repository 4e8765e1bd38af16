"""Optical-flow warping: the normalised grid of a wide frame is cast to half, sub-pixel flow is rounded away."""

import torch
from torch import nn


class Warp(nn.Module):
    def forward(self, feat, flow):
        b, _, h, w = feat.shape
        xs = torch.linspace(-1, 1, w, dtype=torch.float32).to(flow.dtype)
        gx = xs[None, None].expand(b, h, w) + flow[:, 0] * (2 / w)
        gy = torch.linspace(-1, 1, h)[None, :, None].to(flow.dtype) + flow[:, 1] * (2 / h)
        return nn.functional.grid_sample(
            feat, torch.stack([gx, gy], -1).to(feat.dtype), align_corners=True, padding_mode="border"
        )


class FlowNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.est, self.warp = (
            nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1)),
            Warp(),
        )

    def forward(self, a, b):
        return self.warp(b, self.est(torch.cat([a, b], 1) / 60) * 0.4)


def model():
    torch.manual_seed(0)
    return FlowNet()


def batch():
    torch.manual_seed(1)
    x = torch.cumsum(torch.randn(1, 1, 1, 3000), -1).expand(1, 1, 4, 3000)
    return x, 0.75 * x + 0.25 * x.roll(-1, -1)


def loss(m, b):
    return (m(*b).float() - b[0]).square().mean() / 100


TRUTH = {
    "kind": "precision-loss",
    "dtype": "float16",
    "layers": ["warp"],
    "op": "_to_copy,add,mul",
    "fp32_fix": ["warp"],
    "scaler": "none",
    "source": "princeton-vl/RAFT#54; pytorch/pytorch#42218 (grid_sample half)",
}
