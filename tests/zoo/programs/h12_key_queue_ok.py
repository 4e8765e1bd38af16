import copy
import torch
import torch.nn.functional as F
from torch import nn


class MoCo(nn.Module):
    def __init__(self, d=32, k=256):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, d))
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(k, d), dim=1))
        self.register_buffer("ptr", torch.zeros((), dtype=torch.long))

    def forward(self, a, b):
        q = F.normalize(self.q(a), dim=1)
        with torch.no_grad():
            for pk, pq in zip(self.k.parameters(), self.q.parameters()):
                pk.mul_(0.999).add_(pq, alpha=0.001)
            k = F.normalize(self.k(b).float(), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.t().clone()
        with torch.no_grad():
            i = int(self.ptr)
            self.queue[i : i + len(k)] = k
            self.ptr.fill_((i + len(k)) % len(self.queue))
        return torch.cat([pos, neg], 1) / 0.2


def model():
    return MoCo()


def batch():
    x = torch.randn(32, 24)
    return x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)


def loss(model, batch):
    logits = model(*batch)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
