import torch
from torch import nn


class MultiTask(nn.Module):
    """Three heads; a batch has labels for some of them, and the backbone's stem is frozen."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(32, 64)
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(64, 4) for _ in range(3))
        for p in self.stem.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        h = self.body(self.stem(x))
        return [head(h) for head in self.heads]


def model():
    return MultiTask()


def batch():
    mask = torch.tensor([1.0, 0.0, 1.0])  # no labels for the second task in this batch
    return torch.randn(48, 32), torch.randint(0, 4, (3, 48)), mask


def loss(model, batch):
    x, ys, mask = batch
    outs = model(x)
    parts = torch.stack([nn.functional.cross_entropy(o, y) for o, y in zip(outs, ys)])
    return (parts * mask).sum() / mask.sum()
