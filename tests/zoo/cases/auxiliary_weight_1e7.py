"""An auxiliary loss with weight 1e-7 (its raw value is huge): the gradients into its head are below
float16.
"""

import torch
from torch import nn


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.GELU())
        self.head, self.aux = nn.Linear(32, 3), nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 6))

    def forward(self, x):
        h = self.body(x)
        return self.head(h), self.aux(h)


def model():
    torch.manual_seed(0)
    return MultiTask()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 12), torch.randint(3, (32,)), 3 * torch.randn(32, 6)


def loss(model, batch):
    logits, extra = model(batch[0])
    return nn.functional.cross_entropy(logits, batch[1]) + 1e-7 * (extra - batch[2]).pow(2).sum(1).mean()


TRUTH = {
    "kind": "grad-underflow",
    "dtype": "float16",
    "layers": ["", "aux", "aux.0", "aux.1", "aux.2"],
    "op": "",
    "fp32_fix": [],
    "scaler": "needs-scale>=2**7",
    "source": "mechanism: loss weights; Micikevicius et al. 2018 (gradients below 2**-24 become zero)",
}
