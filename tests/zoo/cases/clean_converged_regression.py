"""A regression close to its optimum: small residuals, small gradients, all of them fine at the default
scale.
"""

import torch
from torch import nn


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fit = nn.Linear(6, 2)
        with torch.no_grad():
            self.fit.weight.copy_(torch.arange(12).view(2, 6) / 16)
            self.fit.bias.fill_(0.25)

    def forward(self, x):
        return self.fit(x)


def model():
    torch.manual_seed(0)
    return Linear()


def batch():
    torch.manual_seed(1)
    x = torch.randint(-8, 9, (64, 6)) / 8
    noise = torch.randint(-2, 3, (64, 2)) / 64
    return x, x @ (torch.arange(12).view(2, 6) / 16).t() + 0.25 + noise


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: converged loss",
}
