"""Denoiser for 2-D trajectories, zero-terminal-SNR cosine schedule, v/x0 objective (x0-space loss with a fallback at the last step)."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class Schedule:
    def __init__(self, T):
        self.T = T
        t = torch.arange(1, T + 1) / T
        self.alphas_cumprod = torch.cos(t * math.pi / 2) ** 2          # ~0 at t = T

    def coeffs(self, t, like):
        ab = self.alphas_cumprod.to(device=like.device, dtype=like.dtype)
        a = ab[t] ** 0.5
        s = (1 - ab[t]) ** 0.5
        return a[:, None], s[:, None]


class Net(nn.Module):
    def __init__(self, d=16, T=40, h=128):
        super().__init__()
        self.t = nn.Embedding(T, 24)
        self.trunk = nn.Sequential(nn.Linear(d + 24, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU())
        self.eps = nn.Linear(h, d)
        self.x0 = nn.Linear(h, d)            # used where the noise prediction carries no information

    def forward(self, x, t):
        h = self.trunk(torch.cat([x, self.t(t)], 1))
        return self.eps(h), self.x0(h)


def curves(n):
    p = torch.rand(n, 1) * 6.28
    f = 1 + torch.rand(n, 1)
    u = torch.linspace(0, 1, 8)
    return torch.cat([torch.sin(6 * f * u + p), torch.cos(6 * f * u + p)], 1)


def training_loss(net, sched, x0):
    t = torch.randint(0, sched.T, (len(x0),), device=x0.device)
    noise = torch.randn_like(x0)
    a32, s32 = sched.coeffs(t, x0)
    xt = a32 * x0 + s32 * noise
    with torch.autocast(device, dtype=torch.float16):
        eps, direct = net(xt, t)
        a, s = sched.coeffs(t, eps)
        x0_hat = torch.where(a > 0.05, (xt - s * eps) / a, direct)
        return F.smooth_l1_loss(x0_hat, x0, beta=0.2)


if __name__ == "__main__":
    torch.manual_seed(0)
    sched = Schedule(40)
    net = Net().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device)
    for step in range(1, 301):
        loss = training_loss(net, sched, curves(128).to(device))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 60 == 0:
            print(f"step {step}: x0 loss {loss.item():.4f}")
