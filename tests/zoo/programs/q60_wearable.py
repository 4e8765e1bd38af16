"""Wearable: activity class and heart rate from accelerometer windows, trained by a small fp16 loop of our own."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)
device = "cuda" if torch.cuda.is_available() else "cpu"
WINDOW, AXES, ACTIVITIES = 32, 3, 5
pace = torch.tensor([0.1, 0.5, 0.9, 1.4, 0.7])
axes = torch.randn(ACTIVITIES, AXES)


def windows(n):
    y = torch.randint(ACTIVITIES, (n,))
    t = torch.arange(WINDOW).float()
    speed = pace[y] * (0.8 + 0.4 * torch.rand(n))
    effort = 0.5 + torch.rand(n)
    wave = torch.sin(speed[:, None] * t + 6.28 * torch.rand(n, 1)) * effort[:, None]
    x = wave[:, None] * axes[y][:, :, None] + 0.2 * torch.randn(n, AXES, WINDOW)
    heart = 62 + 38 * effort * speed + 3 * torch.randn(n)
    spectrum = torch.fft.rfft(x).abs() / WINDOW**0.5
    return spectrum.flatten(1).to(device), y.to(device), heart.to(device)


class Net(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.body = nn.Sequential(nn.LazyLinear(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.activity = nn.Linear(width, ACTIVITIES)
        self.heart = nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return self.activity(h), 62 + self.heart(h).squeeze(1).float()


class LossScale:
    """Constant loss scale; gradients come back in true units."""

    def __init__(self, parameters, scale=2.0**16):
        self.parameters, self.scale = list(parameters), scale

    def backward(self, loss):
        (loss * self.scale).backward()
        for p in self.parameters:
            p.grad = torch.where(torch.isfinite(p.grad), p.grad, torch.zeros_like(p.grad)) / self.scale


train, test = windows(4000), windows(2000)
model = Net().to(device)
model(train[0][:2])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaling = LossScale(model.parameters())


def evaluate():
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        logits, heart = model(test[0])
    hit = (logits.argmax(1) == test[1]).float().mean().item()
    return hit, (heart - test[2]).abs().mean().item()


for epoch in range(7):
    for index in torch.randperm(len(train[0])).split(64):
        x, y, heart = (one[index.to(device)] for one in train)
        with torch.autocast("cuda", dtype=torch.float16):
            logits, estimate = model(x)
            loss = F.cross_entropy(logits, y) + 0.5 * F.mse_loss(estimate, heart)
        optimizer.zero_grad()
        scaling.backward(loss)
        optimizer.step()
    if epoch % 2 == 1:
        hit, off = evaluate()
        print(f"epoch {epoch + 1}: loss {loss.item():.2f} activity {hit:.3f} heart rate off by {off:.2f} bpm")
print(f"METRIC {evaluate()[1]:.4f}")
