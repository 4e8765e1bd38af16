from dataclasses import dataclass
import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    d: int = 24
    batch: int = 64
    seq: int = 48
    steps: int = 90
    lr: float = 2e-3
    seed: int = 3


class StreamNorm(nn.Module):
    """Normalises by statistics of everything seen so far."""

    def __init__(self, d):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.half))
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("m2", torch.ones(d))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                n = x.shape[0] * x.shape[1]
                bm = x.float().mean((0, 1))
                bv = x.float().var((0, 1))
                self.count += n
                w = (n / self.count).float()
                self.mean += (bm - self.mean) * w
                self.m2 += (bv - self.m2) * w
        return (x - self.mean) / (self.m2 + 1e-5).sqrt()


class Net(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = StreamNorm(c.d)
        self.inp = nn.Linear(c.d, 64)
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        h = F.gelu(self.inp(self.norm(x)))
        h = h + F.gelu(self.conv(h.transpose(1, 2))).transpose(1, 2)
        return self.head(h.mean(1)).squeeze(-1)


def train(c):
    torch.manual_seed(c.seed)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    net = Net(c).to(dev)
    opt = torch.optim.AdamW(net.parameters(), lr=c.lr)
    scaler = torch.amp.GradScaler(dev)
    w = torch.randn(c.d)
    for i in range(c.steps):
        drift = min(i / 60, 1.0) * 6.0  # the sensor drifts
        x = torch.randn(c.batch, c.seq, c.d) + drift
        y = ((x - drift).mean(1) @ w)
        with torch.autocast(dev, dtype=torch.float16):
            out = net(x.to(dev))
            loss = F.mse_loss(out.float(), y.to(dev))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print("loss", loss.item(), "count", net.norm.count.item(), "mean", net.norm.mean.mean().item())


train(Config())
