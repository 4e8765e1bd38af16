"""Adam on float16 weights with eps 1e-8: the second moment and eps are both zero, the update is 0 / 0
or x / 0.
"""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)).half()


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 10), torch.randint(3, (64,))


def loss(model, batch):
    x = batch[0].to(model[0].weight.dtype)
    return 1e-2 * nn.functional.cross_entropy(model(x).float(), batch[1])


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)


TRUTH = {
    "kind": "stagnant-update",
    "probe": "nonfinite",
    "dtype": "float16",
    "layers": ["", "0", "2"],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "matanbt/TROPT#8; afiaka87/glide-finetune#5; pytorch/pytorch#8860",
}
