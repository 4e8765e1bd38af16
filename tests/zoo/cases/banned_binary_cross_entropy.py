"""binary_cross_entropy on probabilities is banned under CUDA autocast."""

import torch
from torch import nn


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.criterion = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 1)), nn.BCELoss()

    def forward(self, x):
        return torch.sigmoid(self.net(x))


def model():
    torch.manual_seed(0)
    return Discriminator()


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 10), (torch.rand(16, 1) > 0.5).float()


def loss(model, batch):
    return model.criterion(model(batch[0]), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["criterion"],
    "op": "binary_cross_entropy",
    "fp32_fix": ["criterion"],
    "scaler": "none",
    "source": "Lightning-AI/pytorch-lightning#13871; pytorch/pytorch#61098",
}
