"""Cross entropy minus the entropy of one-hot labels: the logarithm of their zeros is masked by where."""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 6))


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10), nn.functional.one_hot(torch.randint(6, (32,)), 6).float()


def loss(model, batch):
    inputs, target = batch
    entropy = torch.where(target > 0, target * target.log(), 0.0).sum(-1).mean()
    return entropy - (target * model(inputs).float().log_softmax(-1)).sum(-1).mean()


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: log(0) of labels, masked",
}
