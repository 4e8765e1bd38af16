"""Stochastic weight averaging into a float16 copy: at model 2000 the term (w - average) / n is below
its ulp.
"""

import torch
from torch import nn


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.live = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3))
        self.average = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3))
        self.average.load_state_dict(self.live.state_dict())
        self.average.half().requires_grad_(requires_grad=False)
        self.models = 2000

    def forward(self, x):
        return self.live(x)


def model():
    torch.manual_seed(0)
    return Averaged()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10), torch.randint(3, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


def optimizer(model):
    return torch.optim.Adam(model.live.parameters(), lr=3e-3)


def after_step(model):
    model.models += 1
    with torch.no_grad():
        for slow, live in zip(model.average.parameters(), model.live.parameters(), strict=True):
            slow.add_((live.to(slow.dtype) - slow) / model.models)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "float16",
    "layers": ["average", "average.0", "average.2"],
    "op": "add_,add",
    "fp32_fix": [],
    "scaler": "none",
    "source": "mechanism: Izmailov et al. 2018 (running average) in the model's dtype",
}
