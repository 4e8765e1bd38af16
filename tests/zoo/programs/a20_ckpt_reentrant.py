import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class EnergyNorm(nn.Module):
    def forward(self, x):
        energy = (x * x).mean(-1, keepdim=True)
        return x / (energy + 1e-3).sqrt()


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = EnergyNorm()
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        return x + 100 * self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.stem = nn.Linear(16, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(4))
        self.head = nn.Linear(d, 5)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=True)
        return self.head(x / 300)


def model():
    return Net()


def batch():
    return 600 * torch.randn(16, 16), torch.randint(0, 5, (16,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
