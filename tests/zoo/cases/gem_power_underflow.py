"""GeM pooling of small features: x * x * x of values near 1e-3 is below fp16, the descriptor is all floor."""

import torch
from torch import nn


class GeM(nn.Module):
    def forward(self, x):
        x = x.clamp(min=1e-6)
        return ((x * x * x).mean((2, 3)).float() + 1e-12) ** (1 / 3)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, 2, 1))
        self.pool, self.whiten = GeM(), nn.Linear(12, 8)

    def forward(self, x):
        return self.whiten(self.pool(self.backbone(x)) * 300)


def model():
    torch.manual_seed(0)
    m = Retrieval()
    with torch.no_grad():
        m.backbone[2].weight.mul_(0.01)
        m.backbone[2].bias.mul_(0.01)
    return m


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 3, 32, 32), torch.randn(4, 8)


def loss(m, b):
    return (1 - nn.functional.cosine_similarity(m(b[0]).float(), b[1])).mean()


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["precision-loss", "backward-overflow"],
    "dtype": "float16",
    "layers": ["pool"],
    "op": "mul,mean",
    "fp32_fix": ["pool"],
    "scaler": "none",
    "source": "filipradenovic/cnnimageretrieval-pytorch GeM",
}
