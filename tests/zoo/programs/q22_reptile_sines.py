import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
SHOTS, INNER_STEPS, META_STEPS, INNER_LR = 20, 5, 120, 0.003


class Regressor(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


class SineTask:
    def __init__(self):
        self.amp = 2.0 + 2.0 * torch.rand(1)
        self.phase = 0.3 * math.pi * torch.rand(1)

    def draw(self, n):
        x = torch.rand(n, 1) * 6 - 3
        return x.to(device), (self.amp * torch.sin(x + self.phase)).to(device)


def adapt(model, task):
    """A few SGD steps on one task; returns the adapted copy and the last inner loss."""
    learner = copy.deepcopy(model)
    inner = torch.optim.SGD(learner.parameters(), lr=INNER_LR)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(INNER_STEPS):
        x, y = task.draw(SHOTS)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(learner(x).float(), y, reduction="sum")
        inner.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(inner)
        scaler.update()
    return learner, loss.item() / SHOTS


def meta_gradient(model, learner):
    for p, q in zip(model.parameters(), learner.parameters()):
        p.grad = p.detach() - q.detach()


model = Regressor().to(device)
outer = torch.optim.SGD(model.parameters(), lr=0.5)
schedule = torch.optim.lr_scheduler.LinearLR(outer, 1.0, 0.2, META_STEPS)

for step in range(META_STEPS):
    learner, inner_loss = adapt(model, SineTask())
    meta_gradient(model, learner)
    outer.step()
    schedule.step()
    if step % 15 == 0:
        moved = sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt().item()
        print(f"meta step {step:3d}  inner loss {inner_loss:.4f}  displacement {moved:.4f}")

torch.manual_seed(1234)
score = 0.0
for _ in range(20):
    task = SineTask()
    learner, _ = adapt(model, task)
    x, y = task.draw(100)
    with torch.no_grad():
        score += F.mse_loss(learner(x), y).item() / 20
print(f"adapted error on unseen tasks {score:.4f}")
