"""A router whose logits share a large bias is evaluated in bf16: steps of 0.5 at 100 turn choices into
ties.
"""

import torch
from torch import nn


class Router(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.gate = nn.Linear(d, n)
        with torch.no_grad():
            self.gate.bias.fill_(100.0)

    def forward(self, x):
        return self.gate(x).float().softmax(-1).max(-1)


class Switch(nn.Module):
    def __init__(self, d=16, n=6):
        super().__init__()
        self.stem, self.router, self.head = nn.Linear(5, d), Router(d, n), nn.Linear(d, 3)
        self.experts = nn.ModuleList(nn.Linear(d, d) for _ in range(n))

    def forward(self, x):
        x = torch.tanh(self.stem(x))
        weight, chosen = self.router(x)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        picked = outputs[torch.arange(len(x)), chosen]
        return self.head(weight[:, None] * picked)


def model():
    torch.manual_seed(0)
    return Switch()


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 5), torch.randint(3, (64,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["router", "router.gate"],
    "op": "addmm,linear,mm,max",
    "fp32_fix": ["router.gate"],
    "scaler": "none",
    "source": "databricks/megablocks#91; marin-community/marin#4234",
}
