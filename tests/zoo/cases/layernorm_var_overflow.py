"""LayerNorm by hand with x.var(): the variance of outlier channels exceeds 65504 and the output is zero."""

import torch
from torch import nn


class HandLN(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        v = x.var(-1, keepdim=True, unbiased=False)
        return (x - x.mean(-1, keepdim=True)) / torch.sqrt(v + 1e-5) * self.g + self.b


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp, self.fc, self.norm, self.out = nn.Linear(8, d), nn.Linear(d, d), HandLN(d), nn.Linear(d, 4)

    def forward(self, x):
        return self.out(self.norm(self.fc(torch.relu(self.inp(x)))))


def model():
    torch.manual_seed(0)
    m = Net()
    with torch.no_grad():
        m.fc.weight.mul_(1500)
    return m


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 8), torch.randint(0, 4, (16,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["norm"],
    "op": "var",
    "fp32_fix": ["norm"],
    "scaler": "none",
    "source": "facebookresearch/ConvNeXt#80; NVIDIA/apex#118",
}
