"""Fits an inverse dynamics model of a two-link arm to logs of its own motion: torques from angles, rates, accelerations.

Logs are read in the order of recording. Now and then an encoder drops out and the record has no number there; a step
with such records is left out. The torques of this small arm are given in N m.
"""

import math

import torch
from torch import nn

DEV = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def torques(q, dq, ddq):
    """A planar arm of two links (0.12 kg, 0.15 m each) with friction."""
    m, l, g = 0.12, 0.15, 9.81
    c2, s2 = torch.cos(q[:, 1]), torch.sin(q[:, 1])
    k = m * l * l
    h11, h12, h22 = k * (5 / 3 + c2), k * (1 / 3 + c2 / 2), k / 3
    g1 = m * g * l * (1.5 * torch.cos(q[:, 0]) + 0.5 * torch.cos(q[:, 0] + q[:, 1]))
    g2 = m * g * l * 0.5 * torch.cos(q[:, 0] + q[:, 1])
    t1 = h11 * ddq[:, 0] + h12 * ddq[:, 1] - k / 2 * s2 * (2 * dq[:, 0] * dq[:, 1] + dq[:, 1] ** 2) + g1
    t2 = h12 * ddq[:, 0] + h22 * ddq[:, 1] + k / 2 * s2 * dq[:, 0] ** 2 + g2
    return torch.stack([t1, t2], 1) + 0.02 * torch.tanh(dq * 5)


def records(k, dropouts):
    q = (torch.rand(k, 2) * 2 - 1) * math.pi
    dq, ddq = torch.randn(k, 2) * 2, torch.randn(k, 2) * 8
    x = torch.cat([torch.cos(q), torch.sin(q), dq / 2, ddq / 8], 1)
    x[torch.rand(k) < dropouts, 4] = float("nan")
    return x.to(DEV), torques(q, dq, ddq).to(DEV)


class InverseDynamics(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x):
        return 0.1 * self.net(x)


class LossScale:
    """The dynamic loss scale of our trainer."""

    def __init__(self, value=2.0**15):
        self.value, self.skipped = value, 0

    def step(self, optimizer):
        """Divide the gradients by the scale and step, unless one of them is not finite."""
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if all(torch.isfinite(g).all() for g in grads):
            for g in grads:
                g.div_(self.value)
            optimizer.step()
            return
        self.value, self.skipped = self.value / 2, self.skipped + 1


model = InverseDynamics().to(DEV)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
steps = 1500
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 0.5 * (1 + math.cos(math.pi * i / steps)) + 0.005)
scale = LossScale()
log, answer = records(steps * 128, 0.0005)
for step in range(steps):
    x, y = log[step * 128 : step * 128 + 128], answer[step * 128 : step * 128 + 128]
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    (loss * scale.value).backward()
    scale.step(opt)
    sched.step()
    if step % 250 == 0:
        print(f"step {step} loss {loss.item():.3e} skipped {scale.skipped}")

test, truth = records(4000, 0.0)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(test).float() - truth).square().mean().sqrt()
print(f"METRIC {error.item() * 1000:.3f}")
