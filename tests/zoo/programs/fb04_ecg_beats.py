"""Beat classification from single-lead ECG; network in half with float masters and a dynamic loss scale."""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(0)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH = 96


def bump(t, centre, width, height):
    return height * torch.exp(-((t - centre) ** 2) / (2 * width**2))


def beat(kind):
    """0 normal, 1 wide QRS, 2 inverted T, 3 missing P."""
    t = torch.linspace(-1, 1, LENGTH)
    shift = random.gauss(0, 0.06)
    wide = 0.09 if kind == 1 else 0.05
    x = bump(t, shift, wide * random.uniform(0.8, 1.25), random.uniform(0.8, 1.3))
    x = x + bump(t, shift + 0.45, 0.12, (-1 if kind == 2 else 1) * random.uniform(0.1, 0.35))
    if kind != 3:
        x = x + bump(t, shift - 0.35, 0.06, random.uniform(0.1, 0.25))
    drift = 0.2 * torch.sin(2 * math.pi * (random.random() + t * random.uniform(0.2, 0.6)))
    return x + drift + 0.08 * torch.randn(LENGTH)


def make(n):
    kinds = [random.randrange(4) for _ in range(n)]
    return torch.stack([beat(k) for k in kinds])[:, None].to(device), torch.tensor(kinds).to(device)


class DynamicScale(nn.Module):
    def __init__(self, start=2.0**15, interval=25):
        super().__init__()
        self.register_buffer("value", torch.tensor(start))
        self.interval, self.clean = interval, 0

    def forward(self, loss):
        return loss * self.value

    def update(self, overflow):
        self.clean = 0 if overflow else self.clean + 1
        if overflow:
            self.value.mul_(0.5)
        elif self.clean == self.interval:
            self.value.mul_(2.0)
            self.clean = 0


class BeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 12, 9, stride=2, padding=4), nn.ReLU(),
            nn.Conv1d(12, 16, 7, stride=2, padding=3), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * LENGTH // 4, 32), nn.ReLU(), nn.Linear(32, 4),
        )
        self.loss_scale = DynamicScale()

    def forward(self, x):
        return self.body(x)


train_x, train_y = make(768)
test_x, test_y = make(400)
net = BeatNet().to(device)
masters = [p.detach().clone().float().requires_grad_() for p in net.parameters()]
net.half()
opt = torch.optim.Adam(masters, lr=1e-3)

for step in range(240):
    pick = torch.randint(0, len(train_x), (32,), device=device)
    loss = F.cross_entropy(net(train_x[pick].half()).float(), train_y[pick])
    net.zero_grad(set_to_none=True)
    net.loss_scale(loss).backward()
    overflow = any(not torch.isfinite(p.grad).all() for p in net.parameters())
    if not overflow:
        for master, p in zip(masters, net.parameters()):
            master.grad = p.grad.float() / net.loss_scale.value.float()
        nn.utils.clip_grad_norm_(masters, 5.0)
        opt.step()
        with torch.no_grad():
            for master, p in zip(masters, net.parameters()):
                p.copy_(master)
    net.loss_scale.update(overflow)
    if step % 60 == 0:
        print(f"step {step:3d} loss {loss.item():.3f}")

with torch.no_grad():
    acc = (net(test_x.half()).argmax(1) == test_y).float().mean().item()
print(f"metric {acc:.4f}")
