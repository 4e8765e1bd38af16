"""A network cast to bf16 with its batch norms: running statistics with momentum 1e-3 stay at their
first values.
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=1e-3)
        self.head = nn.Linear(8, 3)
        self.norm.running_mean.add_(1.0)
        self.norm.bfloat16()

    def forward(self, x):
        h = self.norm(self.conv(x).to(self.norm.weight.dtype))
        return self.head(h.float().relu().mean((2, 3)))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 3, 10, 10), torch.randint(3, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def optimizer(model):
    return torch.optim.SGD([*model.conv.parameters(), *model.head.parameters()], lr=0.1)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "bfloat16",
    "layers": ["norm"],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "mechanism: exponential averages in the weights' dtype; onnx/onnx#3415 keeps them in float32",
}
