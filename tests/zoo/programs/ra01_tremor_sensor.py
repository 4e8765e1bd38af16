"""Regress frequency and amplitude of a hand tremor from wrist accelerometer windows; the averaged weights are deployed."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.bfloat16
WINDOW, BATCH, STEPS = 64, 32, 200


def make_windows(n):
    """Three axes of acceleration at 50 Hz: tremor + slow arm motion + noise."""
    t = torch.arange(WINDOW) / 50.0
    freq = torch.empty(n).uniform_(3.0, 9.0)
    amp = torch.empty(n).uniform_(0.3, 1.5)
    phase = torch.rand(n, 3, 1) * 2 * math.pi
    axis = F.normalize(torch.randn(n, 3), dim=1)
    tremor = amp[:, None, None] * axis[:, :, None] * torch.sin(2 * math.pi * freq[:, None, None] * t + phase)
    motion = 0.5 * torch.randn(n, 3, 1) * torch.sin(2 * math.pi * 0.4 * t + phase)
    x = tremor + motion + 0.05 * torch.randn(n, 3, WINDOW)
    y = torch.stack([(freq - 6.0) / 1.7, (amp - 0.9) / 0.35], dim=1)
    return x.to(device), y.to(device)


class TremorNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv1d(3, width, 9, stride=2, padding=4)
        self.conv2 = nn.Conv1d(width, width, 7, stride=2, padding=3)
        self.conv3 = nn.Conv1d(width, 2 * width, 5, stride=2, padding=2)
        self.head = nn.Sequential(nn.Linear(2 * width, 48), nn.GELU(), nn.Linear(48, 2))

    def forward(self, x):
        x = F.gelu(self.conv1(x))
        x = F.gelu(self.conv2(x))
        x = F.gelu(self.conv3(x))
        return self.head(x.mean(dim=2))


class WeightAverage:
    """Exponential moving average of the weights, used for evaluation and export."""

    def __init__(self, model, decay=0.98):
        self.decay = decay
        self.shadow = copy.deepcopy(model).to(amp_dtype)
        self.shadow.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for avg, p in zip(self.shadow.parameters(), model.parameters()):
            avg.mul_(self.decay).add_(p.to(avg.dtype), alpha=1 - self.decay)


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
        pred = model(x)
    return (pred.float() - y).pow(2).mean().sqrt().item()


model = TremorNet().to(device)
average = WeightAverage(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=STEPS)
x_test, y_test = make_windows(512)

for step in range(STEPS):
    x, y = make_windows(BATCH)
    model.train()
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        pred = model(x)
        loss = F.mse_loss(pred, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    average.update(model)
    if step % 50 == 49:
        print(f"step {step + 1} loss {loss.item():.4f}")

print(f"metric {evaluate(average.shadow, x_test, y_test):.4f}")
