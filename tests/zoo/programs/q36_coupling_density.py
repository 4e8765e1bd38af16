import torch
import torch.nn as nn
from dataclasses import dataclass


@dataclass
class Config:
    dim: int = 4
    width: int = 64
    layers: int = 4
    steps: int = 300
    batch: int = 256
    lr: float = 1.5e-3
    open_bias: float = 7.0
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


class Coupling(nn.Module):
    """x_b -> (x_b - shift) / scale; the scale starts close to one."""

    def __init__(self, cfg, flip):
        super().__init__()
        self.flip = flip
        self.bias = cfg.open_bias
        half = cfg.dim // 2
        self.net = nn.Sequential(nn.Linear(half, cfg.width), nn.GELU(), nn.Linear(cfg.width, cfg.width), nn.GELU())
        self.out = nn.Linear(cfg.width, 2 * half)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        shift, raw = self.out(self.net(a)).chunk(2, dim=1)
        scale = torch.sigmoid(raw + self.bias)
        b = (b - shift) / scale
        logdet = -scale.log().sum(1)
        return torch.cat([b, a] if self.flip else [a, b], dim=1), logdet


class Flow(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.blocks = nn.ModuleList(Coupling(cfg, bool(i % 2)) for i in range(cfg.layers))

    def log_prob(self, x):
        total = x.new_zeros(len(x))
        for block in self.blocks:
            x, logdet = block(x)
            total = total + logdet
        return total - 0.5 * (x.float() ** 2 + 1.8379).sum(1)


def draw(n, device):
    a = torch.randn(n, 2)
    r = 0.3 + 0.1 * a[:, :1].sigmoid()
    b = torch.cat([a[:, :1].sin(), a[:, 1:].cos()], 1) + r * 0.8 * torch.randn(n, 2)
    return torch.cat([0.4 * a, b], 1).to(device)


def main():
    torch.manual_seed(21)
    cfg = Config()
    flow = Flow(cfg).to(cfg.device)
    opt = torch.optim.Adam(flow.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        x = draw(cfg.batch, cfg.device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            nll = -flow.log_prob(x).mean()
        opt.zero_grad()
        nll.backward()
        opt.step()
        if step % 70 == 0:
            print(f"{step:4d}  nll {nll.item():.3f}")
    flow.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        nll = -flow.log_prob(draw(2048, cfg.device)).mean().item()
    print("METRIC", round(nll, 4))


main()
