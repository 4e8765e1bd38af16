"""SwAV's Sinkhorn: scores / epsilon in half, before the maximum is taken off, leaves float16."""

import torch
from torch import nn


class Sinkhorn(nn.Module):
    def forward(self, scores):
        scores = scores / 5e-4
        weights = (scores - scores.amax(-1, keepdim=True)).float().exp()
        return weights / weights.sum(-1, keepdim=True)


class Prototypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.prototypes = nn.Linear(16, 24, bias=False)
        self.sinkhorn = Sinkhorn()
        with torch.no_grad():
            self.prototypes.weight.mul_(80)

    def forward(self, x):
        scores = self.prototypes(nn.functional.normalize(self.body(x), dim=-1))
        with torch.no_grad():
            codes = self.sinkhorn(scores)
        return scores, codes


def model():
    torch.manual_seed(0)
    return Prototypes()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 16)


def loss(model, batch):
    scores, codes = model(batch)
    return -(codes * nn.functional.log_softmax(scores / 10, dim=-1)).sum(-1).mean()


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["sinkhorn"],
    "op": "div",
    "fp32_fix": ["sinkhorn"],
    "scaler": "none",
    "source": "facebookresearch/swav; mechanism: division by epsilon before the maximum is subtracted",
}
