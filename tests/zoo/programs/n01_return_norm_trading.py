"""Policy evaluation for a market-making desk: value network with a running normaliser on its targets."""
import math

import numpy as np
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(11)
rng = np.random.default_rng(11)


class ReturnNormalizer(nn.Module):
    """First and second moment of the returns, exponentially averaged."""

    def __init__(self, beta=0.05):
        super().__init__()
        self.beta = beta
        self.register_buffer("mu", torch.zeros(1))
        self.register_buffer("nu", torch.ones(1))

    @property
    def sigma(self):
        return (self.nu - self.mu ** 2).clamp(min=1e-2).sqrt()

    @torch.no_grad()
    def update(self, returns):
        t = returns.to(self.mu.dtype)
        self.mu.mul_(1 - self.beta).add_(self.beta * t.mean())
        self.nu.mul_(1 - self.beta).add_(self.beta * (t ** 2).mean())

    def forward(self, returns):
        return (returns - self.mu) / self.sigma


class Critic(nn.Module):
    def __init__(self, n_feat):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_feat, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.value = nn.Linear(96, 1)

    def forward(self, x):
        return self.value(self.trunk(x))


W = rng.normal(size=(24,)) / math.sqrt(24)
V = rng.normal(size=(24,)) / math.sqrt(24)


def rollout(n):
    """Order book features and the discounted P&L in dollars of the day that follows."""
    x = rng.normal(size=(n, 24)).astype(np.float32)
    pnl = 220.0 * (x @ W) + 90.0 * np.abs(x @ V) + 180.0 + rng.normal(size=n) * 20.0
    return torch.from_numpy(x).to(device), torch.from_numpy(pnl.astype(np.float32)).unsqueeze(1).to(device)


critic = Critic(24).to(device)
norm = ReturnNormalizer().to(device).half()
opt = torch.optim.Adam(critic.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)

for it in range(150):
    x, ret = rollout(256)
    norm.update(ret)
    with torch.autocast(device, dtype=torch.float16):
        v = critic(x)
        loss = nn.functional.smooth_l1_loss(v.float(), norm(ret).float())
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if it % 25 == 0:
        print(f"iter {it:4d} loss {loss.item():.4f} mu {norm.mu.item():.1f} sigma {norm.sigma.item():.1f}")

with torch.no_grad():
    x, ret = rollout(2048)
    print(f"correlation of value and realised P&L {torch.corrcoef(torch.stack([critic(x).squeeze(1), ret.squeeze(1)]))[0, 1].item():.3f}")
