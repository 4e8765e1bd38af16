"""The step counter of an annealed temperature went to bf16 with the model: at 256, adding one changes
nothing.
"""

import torch
from torch import nn


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(256.0, dtype=torch.bfloat16))

    def forward(self, logits):
        return logits.float() / (1 + 100 / (1 + self.steps.float()))


class Gumbel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.annealed = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 5)), Annealed()

    def forward(self, x):
        return self.annealed(self.net(x))


def model():
    torch.manual_seed(0)
    return Gumbel()


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 9), torch.randint(5, (16,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def after_step(model):
    model.annealed.steps.add_(1)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "bfloat16",
    "layers": ["annealed"],
    "op": "add_,add",
    "fp32_fix": [],
    "scaler": "none",
    "source": "mechanism: counters in half; pytorch/pytorch#137774 (256 + 1 in bf16)",
}
