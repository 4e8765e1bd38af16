"""VQ codebook usage, an exponential average with decay 0.999 in a bf16 buffer: it never moves."""

import torch
from torch import nn


class Usage(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.register_buffer("usage", torch.full((k,), 4.0, dtype=torch.bfloat16))

    def forward(self, n):
        with torch.no_grad():
            self.usage.mul_(0.999).add_(n.to(self.usage.dtype), alpha=0.001)


class VQ(nn.Module):
    def __init__(self, k=16, d=8):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(k, d))
        self.ema = Usage(k)

    def forward(self, z):
        i = torch.cdist(z.float(), self.codes).argmin(1)
        q = self.codes[i]
        self.ema(torch.bincount(i, minlength=len(self.codes)))
        return z + (q - z).detach(), nn.functional.mse_loss(
            q, z.detach().float()
        ) + 0.25 * nn.functional.mse_loss(z.float(), q.detach())


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.vq, self.dec = nn.Linear(12, 8), VQ(), nn.Linear(8, 12)

    def forward(self, x):
        q, c = self.vq(self.enc(x))
        return self.dec(q), c


def model():
    torch.manual_seed(0)
    return VQVAE()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 12)


def loss(m, b):
    out, c = m(b)
    return nn.functional.mse_loss(out.float(), b) + c


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=1e-3)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "bfloat16",
    "layers": ["vq.ema"],
    "op": "mul_,add_",
    "fp32_fix": [],
    "scaler": "none",
    "source": "lucidrains/vector-quantize-pytorch#27 (bf16 EMA)",
}
