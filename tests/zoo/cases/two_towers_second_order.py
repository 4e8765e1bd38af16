"""Second-order pooling in both towers: two culprits, so the smallest FP32 set has two members."""

import torch
from torch import nn


class SoftSecondOrder(nn.Module):
    def forward(self, x):
        pooled = (x.transpose(1, 2) @ x).flatten(1).float()
        return pooled / pooled.norm(dim=1, keepdim=True)


class Tower(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.embed, self.pool, self.out = nn.Linear(6, 12), SoftSecondOrder(), nn.Linear(144, 8)
        with torch.no_grad():
            self.embed.weight.mul_(gain)

    def forward(self, x):
        return self.out(self.pool(self.embed(x)))


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Tower(150), Tower(200)

    def forward(self, a, b):
        return self.image(a) @ self.text(b).t()


def model():
    torch.manual_seed(0)
    return Matcher()


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 20, 6), torch.randn(8, 16, 6)


def loss(model, batch):
    return nn.functional.cross_entropy(model(*batch), torch.arange(8))


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["image.pool", "text.pool"],
    "op": "bmm,matmul",
    "fp32_fix": ["image.pool", "text.pool"],
    "scaler": "none",
    "source": "mechanism: covariance pooling (NVIDIA/apex#402 is the same product), twice",
}
