from dataclasses import dataclass
import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Cfg:
    micro: int = 4
    batches: int = 602
    lr: float = 2e-3
    clip: float = 1.0


class VAE(nn.Module):
    def __init__(self, i=30, z=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 64), nn.ReLU(), nn.Linear(64, i))

    def forward(self, x):
        mu, lv = self.enc(x).float().chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return self.dec(z), mu, lv


class Loop:
    def __init__(self, cfg):
        self.cfg = cfg
        self.dev = "cuda" if torch.cuda.is_available() else "cpu"
        self.net = VAE().to(self.dev)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg.lr)
        self.scaler = torch.amp.GradScaler(self.dev, init_scale=2.0**22)  # finds its own level in a few steps
        self.w = torch.randn(4, 30)

    def batch(self):
        return torch.tanh(torch.randn(32, 4) @ self.w).to(self.dev)

    def loss(self, x):
        with torch.autocast(self.dev, dtype=torch.float16):
            r, mu, lv = self.net(x)
            return F.mse_loss(r, x, reduction="none").float().sum(1).mean() - 0.5 * (1 + lv - mu**2 - lv.exp()).sum(1).mean() * 0.1

    def run(self):
        n = self.cfg.batches
        for i in range(n):
            last = i + 1 == n
            group = self.cfg.micro if i < n - n % self.cfg.micro else n % self.cfg.micro
            l = self.loss(self.batch())
            self.scaler.scale(l / group).backward()
            if (i + 1) % self.cfg.micro == 0 or last:
                self.scaler.unscale_(self.opt)
                nn.utils.clip_grad_norm_(self.net.parameters(), self.cfg.clip)
                self.scaler.step(self.opt)
                self.scaler.update()
                self.opt.zero_grad(set_to_none=True)
        print("loss", l.item(), "scale", self.scaler.get_scale())


torch.manual_seed(0)
Loop(Cfg()).run()
