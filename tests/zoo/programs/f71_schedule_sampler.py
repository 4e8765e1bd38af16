"""Diffusion on low-contrast radiograph patches, x0-prediction, with the loss-aware timestep sampler."""
import math

import torch
import torch.nn as nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
T = 64


class LossSecondMomentSampler:
    """Draws t in proportion to the root mean square of its recent losses."""

    def __init__(self, num_timesteps, history=6, uniform_prob=0.001, dtype=torch.float16):
        self.history, self.uniform_prob = history, uniform_prob
        self.sq_loss = torch.zeros(num_timesteps, history, dtype=dtype, device=device)
        self.count = torch.zeros(num_timesteps, dtype=torch.long, device=device)

    def warm(self):
        return bool((self.count >= self.history).all())

    def weights(self):
        if not self.warm():
            return torch.ones(len(self.count), device=device) / len(self.count)
        w = self.sq_loss.float().mean(1).sqrt()
        w = w / w.sum()
        return w * (1 - self.uniform_prob) + self.uniform_prob / len(w)

    def sample(self, n):
        p = self.weights()
        t = torch.multinomial(p, n, replacement=True)
        return t, 1.0 / (len(p) * p[t])

    @torch.no_grad()
    def update(self, t, losses):
        for ti, li in zip(t.tolist(), losses):
            self.sq_loss[ti, self.count[ti] % self.history] = (li * li).to(self.sq_loss.dtype)
            self.count[ti] += 1


class Net(nn.Module):
    def __init__(self, d, width=128):
        super().__init__()
        self.t_embed = nn.Embedding(T, width)
        self.inp = nn.Linear(d, width)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.out = nn.Linear(width, d)

    def forward(self, x, t):
        return self.out(self.mid(self.inp(x) + self.t_embed(t)))


D = 64
basis = torch.randn(D, 6, device=device) / math.sqrt(6)
CONTRAST = 0.04      # patches have their mean removed; the tissue texture is a few % of full scale


def patches(n):
    return CONTRAST * torch.tanh(torch.randn(n, 6, device=device) @ basis.t())


abar = torch.cos(torch.linspace(0.02, 0.98, T, device=device) * math.pi / 2) ** 2


def noised(x0, t):
    a = abar[t][:, None]
    return a.sqrt() * x0 + (1 - a).sqrt() * CONTRAST * torch.randn_like(x0)


net = Net(D).to(device)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
sampler = LossSecondMomentSampler(T)

steps = 220
for step in range(steps):
    x0 = patches(64)
    t, importance = sampler.sample(64)
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
        pred = net(noised(x0, t) / CONTRAST, t)
    per_item = ((pred.float() * CONTRAST - x0) ** 2).mean(1)
    sampler.update(t, per_item.detach())
    loss = (importance * per_item).mean() / CONTRAST ** 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == steps - 1:
        print(f"step {step} relative mse {loss.item():.4f} sampler warm {sampler.warm()}")

with torch.no_grad():
    x0 = patches(512)
    err = torch.stack([((net(noised(x0, torch.full((512,), k, device=device)) / CONTRAST, torch.full((512,), k, device=device))
                         - x0 / CONTRAST) ** 2).mean() for k in range(T)])
p = sampler.weights()
print("relative x0 error by quarter of the schedule:", [round(q.mean().item(), 4) for q in err.chunk(4)])
print("sampling probability by quarter:", [round(q.sum().item(), 4) for q in p.chunk(4)])
