from dataclasses import dataclass
import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class TrainArgs:
    micro: int = 8
    accum: int = 8
    steps: int = 25
    lr: float = 3e-4
    dim: int = 64


class HalfAccumulator:
    """Sums micro-batch gradients in fp16, outside of .grad, to save memory."""

    def __init__(self, params):
        self.params = list(params)
        self.buf = [torch.zeros_like(p, dtype=torch.float16) for p in self.params]

    def add(self, inv):
        for b, p in zip(self.buf, self.params):
            b += (p.grad * inv).to(b.dtype)
            p.grad = None

    def flush(self, k):
        for b, p in zip(self.buf, self.params):
            p.grad = b.to(p.dtype) / k
            b.zero_()


class Ranker(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.user, self.item = nn.Embedding(400, d), nn.Embedding(900, d)
        self.mlp = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, u, i):
        a, b = self.user(u), self.item(i)
        return self.mlp(torch.cat([a, b], -1)).squeeze(-1)


def run(cfg: TrainArgs):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = Ranker(cfg.dim).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr, eps=1e-12)
    scaler = torch.amp.GradScaler(device)
    acc = HalfAccumulator(net.parameters())
    for step in range(cfg.steps):
        for _ in range(cfg.accum):
            u, i = torch.randint(0, 400, (cfg.micro,)), torch.randint(0, 900, (cfg.micro, 50))
            with torch.autocast(device, dtype=torch.float16):
                s = net(u[:, None].expand_as(i).to(device), i.to(device))
                y = ((u[:, None] + i) % 7 == 0).float().to(device)
                # click-through weights are tiny: a calibrated loss per impression
                loss = 1e-4 * F.binary_cross_entropy_with_logits(s, y)
            scaler.scale(loss).backward()
            acc.add(1.0 / scaler.get_scale())
        acc.flush(cfg.accum)
        opt.step()
        opt.zero_grad(set_to_none=True)
    print("loss", loss.item() * 1e4)


if __name__ == "__main__":
    run(TrainArgs())
