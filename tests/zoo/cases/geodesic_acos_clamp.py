"""Rotation geodesic loss: acos(clamp(c, -1 + 1e-7, 1 - 1e-7)), but 1 - 1e-7 is 1 in fp16."""

import torch
from torch import nn


class Geodesic(nn.Module):
    def forward(self, r, target):
        t = torch.einsum("bij,bij->b", r, target.to(r.dtype))
        return torch.acos(((t - 1) / 2).clamp(-1 + 1e-7, 1 - 1e-7)).mean()


class SixD(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.geodesic = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 6)), Geodesic()

    def forward(self, x, base):
        d = 0.02 * self.net(x).float() + base
        a = nn.functional.normalize(d[:, :3], dim=-1)
        b = nn.functional.normalize(d[:, 3:] - (a * d[:, 3:]).sum(-1, keepdim=True) * a, dim=-1)
        return torch.stack([a, b, torch.cross(a, b, dim=-1)], 1)


def model():
    torch.manual_seed(0)
    return SixD()


def batch():
    torch.manual_seed(1)
    q = torch.linalg.qr(torch.randn(24, 3, 3))[0]
    q = q * torch.linalg.det(q)[:, None, None].sign()
    return torch.randn(24, 12), q[:, :2].reshape(24, 6), q


def loss(m, b):
    return m.geodesic(m(b[0], b[1]), b[2])


TRUTH = {
    "kind": "backward-overflow",
    "alt_kinds": ["precision-loss", "forward-underflow"],
    "dtype": "float16",
    "layers": ["geodesic"],
    "op": "acos,div,mul,rsqrt,clamp,neg,bmm,einsum",
    "fp32_fix": ["geodesic"],
    "scaler": "none",
    "source": "facebookresearch/pytorch3d so3_relative_angle acos_linear_extrapolation; papagina/RotationContinuity",
}
