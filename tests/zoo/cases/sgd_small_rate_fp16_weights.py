"""A model in pure float16 under SGD with a learning rate of 1e-5: steps are far below half an ulp of
the weights.
"""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 4)).half()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 12), torch.randint(4, (32,))


def loss(model, batch):
    x = batch[0].to(model[0].weight.dtype)
    return nn.functional.cross_entropy(model(x).float(), batch[1])


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-5)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "float16",
    "layers": ["", "0", "2"],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "mechanism: FP32 master weights (Micikevicius et al. 2018); sanghyun-son/EDSR-PyTorch#36",
}
