"""Gumbel noise in an autocast-off region: 0.9999 rounds to 1 in half and -log(-log(1 + 1e-20) + 1e-20) is inf."""

import torch
from torch import nn


class GumbelGate(nn.Module):
    def forward(self, logits):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            u = torch.rand(logits.shape, device=logits.device).to(logits.dtype)
            g = -torch.log(-torch.log(u + 1e-20) + 1e-20)
            return torch.softmax((logits + g) / 0.5, -1)


class Router(nn.Module):
    def __init__(self, d=24, e=64):
        super().__init__()
        self.gate, self.gumbel, self.codes = (
            nn.Linear(d, e),
            GumbelGate(),
            nn.Parameter(torch.randn(e, d) * 0.2),
        )

    def forward(self, h):
        return self.gumbel(self.gate(h)).to(h.dtype) @ self.codes


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.proj, self.router, self.head = nn.Linear(10, d), Router(d), nn.Linear(d, 3)

    def forward(self, x):
        h = self.proj(x)
        return self.head(h + self.router(h))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(256, 10), torch.randint(0, 3, (256,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow"],
    "dtype": "float16",
    "layers": ["router.gumbel"],
    "op": "log,add,_to_copy,neg",
    "fp32_fix": ["router.gumbel"],
    "scaler": "none",
    "source": "pytorch/pytorch#22442; lucidrains gumbel_noise log(t, eps=1e-20)",
}
