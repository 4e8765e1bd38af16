"""A learnable log-temperature stored in bf16 at 4.6: Adam steps of 1e-3 are under half an ulp."""

import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_t = nn.Parameter(torch.full((1,), 4.6, dtype=torch.bfloat16))

    def forward(self, s):
        return s * self.log_t.exp()


class Clip(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(10, d), nn.Linear(12, d), Scale()

    def forward(self, x, y):
        return self.scale(
            nn.functional.normalize(self.a(x), dim=-1) @ nn.functional.normalize(self.b(y), dim=-1).t()
        )


def model():
    torch.manual_seed(0)
    return Clip()


def batch():
    torch.manual_seed(1)
    return torch.randn(12, 10), torch.randn(12, 12)


def loss(m, b):
    return nn.functional.cross_entropy(m(*b).float(), torch.arange(12))


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=1e-3)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "bfloat16",
    "layers": ["scale"],
    "op": "addcdiv_,add_,addcdiv,add",
    "fp32_fix": [],
    "scaler": "none",
    "source": "mlfoundations/open_clip pure_bf16 logit_scale; openai/CLIP#57",
}
