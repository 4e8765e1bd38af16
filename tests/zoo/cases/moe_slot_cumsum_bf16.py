"""MoE dispatch: the slot of a token inside its expert, counted in bf16, collides above 256."""

import torch
from torch import nn


class Slots(nn.Module):
    def forward(self, gate, cap):
        one_hot = nn.functional.one_hot(gate.argmax(-1), gate.shape[-1]).to(gate.dtype)
        pos = (torch.cumsum(one_hot, 0).to(gate.dtype) - 1) * one_hot
        return pos.sum(-1).long().clamp(max=cap - 1)


class MoE(nn.Module):
    def __init__(self, d=16, e=3, cap=600):
        super().__init__()
        self.gate, self.slots, self.cap = nn.Linear(d, e), Slots(), cap
        self.w = nn.Parameter(torch.randn(e, d, d) * 0.3)

    def forward(self, x):
        g = self.gate(x)
        slot, expert = self.slots(g, self.cap), g.argmax(-1)
        buf = torch.zeros(len(self.w) * self.cap, x.shape[1], dtype=x.dtype).index_add(
            0, expert * self.cap + slot, x
        )
        out = torch.bmm(buf.view(len(self.w), self.cap, -1), self.w).flatten(0, 1)
        return x + out[expert * self.cap + slot].to(x.dtype)


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.embed, self.moe, self.head = nn.Linear(8, d), MoE(d), nn.Linear(d, 5)

    def forward(self, x):
        return self.head(self.moe(self.embed(x)))


def model():
    torch.manual_seed(0)
    m = Net()
    with torch.no_grad():
        m.moe.gate.bias.copy_(torch.tensor([3.0, 0, 0]))
    return m


def batch():
    torch.manual_seed(1)
    return torch.randn(600, 8), torch.randint(0, 5, (600,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["moe.slots"],
    "op": "_to_copy,sub,mul,sum,cumsum",
    "fp32_fix": ["moe.slots"],
    "scaler": "none",
    "source": "microsoft/DeepSpeed sharded_moe locations1 / microsoft/tutel fast_cumsum",
}
