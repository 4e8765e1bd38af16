"""Two float32 queues are written with half features; the second error shows only once the first is gone."""

import torch
from torch import nn


class Queue(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.register_buffer("rows", torch.randn(n, d))

    def forward(self, z):
        fresh = self.rows.clone()
        fresh.scatter_(0, torch.arange(len(z))[:, None].expand_as(z), z)
        return z.float() @ fresh.t()


class Moco(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 10))
        self.local, self.far = Queue(20, 10), Queue(30, 10)

    def forward(self, x):
        z = self.net(x)
        return torch.cat([self.local(z), self.far(z)], 1)


def model():
    torch.manual_seed(0)
    return Moco()


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 8), torch.randint(50, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["local", "far"],
    "op": "scatter,scatter_",
    "fp32_fix": ["local", "far"],
    "scaler": "none",
    "source": "mechanism: scatter_ wants one dtype; cvg/glue-factory#76 is a relative",
}
