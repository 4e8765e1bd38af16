"""Wear stage of a bearing from vibration features that come in 16 bit, with running statistics."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"

FEATURES, STAGES = 24, 5
rule = torch.randn(FEATURES, 12) / FEATURES**0.5
out = torch.randn(12, STAGES)


def record(n):
    x = torch.randn(n, FEATURES)
    stage = (torch.sin(2 * x @ rule) @ out).argmax(1)
    return (40 + 3 * x).to(device), stage.to(device)


class RunningStandardiser(nn.Module):
    """Mean and variance of each channel over all that was seen (Chan's update)."""

    def __init__(self, channels, eps=1e-3):
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("spread", torch.zeros(channels))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update(self, x):
        n = len(x)
        mean = x.mean(0)
        delta = mean - self.mean
        total = self.count + n
        self.spread += (x - mean).square().sum(0) + delta.square() * self.count * n / total
        self.mean += delta * (n / total)
        self.count += n

    def forward(self, x):
        if self.training:
            self.update(x.float())
        variance = self.spread / self.count
        return ((x.float() - self.mean) / (variance + self.eps).sqrt()).to(x.dtype)


class WearNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = RunningStandardiser(FEATURES)
        self.first = nn.Linear(FEATURES, 96)
        self.hidden = nn.LayerNorm(96)
        self.rest = nn.Sequential(nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, STAGES))

    def forward(self, x):
        return self.rest(self.hidden(self.first(self.inputs(x))))


x_train, y_train = record(8000)
x_test, y_test = record(4000)
x_train, x_test = x_train.to(torch.float16), x_test.to(torch.float16)  # as the logger delivers them
model = WearNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for step in range(300):
    pick = torch.randint(len(x_train), (128,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x_train[pick]), y_train[pick])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 60 == 0:
        print(f"step {step} loss {loss.item():.3f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    accuracy = (model(x_test).argmax(1) == y_test).float().mean()
print(f"metric {accuracy.item():.4f}")
