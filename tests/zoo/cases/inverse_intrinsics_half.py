"""Camera intrinsics are predicted in half and inverted: no half kernel for linalg.inv."""

import torch
from torch import nn


class Unproject(nn.Module):
    def forward(self, k, uv):
        return uv @ torch.linalg.inv(k).transpose(1, 2)


class Calib(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.unproject = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 9)), Unproject()

    def forward(self, x, uv):
        k = 0.1 * self.net(x).view(-1, 3, 3) + torch.eye(3).to(self.net[0].weight.dtype).type_as(self.net(x))
        return self.unproject(k, uv)


def model():
    torch.manual_seed(0)
    return Calib()


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 6), torch.randn(4, 10, 3)


def loss(m, b):
    return m(*b).float().square().mean()


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["unproject"],
    "op": "linalg_inv_ex,linalg_inv,inverse",
    "fp32_fix": ["unproject"],
    "scaler": "none",
    "source": "pytorch/pytorch#30845 (inverse for Half)",
}
