"""An Euler solver adds 0.01 to a bf16 clock: from 2 on it stands still."""

import torch
from torch import nn


class Solver(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.field = nn.Linear(d, d)
        self.steps = 400

    def forward(self, x):
        time = torch.zeros((), dtype=x.dtype)
        path = x
        for _ in range(self.steps):
            time = time + 0.01
            path = path + 0.01 * torch.sin(3 * time).to(x.dtype).float() * x.float()
        return self.field(path)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.solver, self.head = nn.Linear(5, 16), Solver(16), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.solver(self.embed(x)))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 5), torch.randn(32, 1)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["solver"],
    "op": "add,mul,sin",
    "fp32_fix": ["solver"],
    "scaler": "none",
    "source": "mechanism: time of a neural ODE accumulated in the dtype of its state",
}
