"""Learns how far to trust each crowd source of soil-moisture labels: weights in an outer loop, the model in the inner one.

The outer gradient is the second-order one of DARTS, by a finite difference around the inner weights.
"""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
SOURCES, BANDS = 12, 10
GOOD = torch.arange(SOURCES, device=device) < 4
truth_net = nn.Sequential(nn.Linear(BANDS, 12), nn.Tanh(), nn.Linear(12, 1)).to(device).requires_grad_(False)
truth_net[0].weight.mul_(2)
truth_net[2].weight.mul_(3)


def moisture(x):
    return truth_net(x).squeeze(1)


def crowd(n):
    """Sources 0 to 3 tell the truth, the others report the field with a sign of their own."""
    x = torch.randn(n, BANDS, device=device)
    source = torch.randint(0, SOURCES, (n,), device=device)
    y = moisture(x)
    return x, source, torch.where(GOOD[source], y, -0.8 * y + 0.5 * torch.randn(n, device=device))


class Bilevel:
    def __init__(self, inner_lr=0.1, outer_lr=0.1):
        self.model = nn.Sequential(nn.Linear(BANDS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
        self.trust = torch.zeros(SOURCES, device=device, requires_grad=True)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=inner_lr, momentum=0.9)
        self.outer = torch.optim.Adam([self.trust], lr=outer_lr)
        self.scaler = torch.amp.GradScaler("cuda")
        self.inner_lr = inner_lr
        self.weights = list(self.model.parameters())

    def train_loss(self, x, source, y):
        error = F.mse_loss(self.model(x).squeeze(1), y, reduction="none")
        return (torch.sigmoid(self.trust)[source] * error).mean()

    def scaled_grads(self, loss, wrt):
        scale = 1024.0
        return [g / scale for g in torch.autograd.grad(loss * scale, wrt)]

    def shift(self, direction, by):
        with torch.no_grad():
            for weight, d in zip(self.weights, direction):
                weight.add_(d, alpha=by)

    def outer_step(self, batch, clean):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(self.model(clean[0]).squeeze(1), clean[1])
        direction = self.scaled_grads(loss, self.weights)
        eps = 1e-6
        sides = []
        for by in (eps, -2 * eps):
            self.shift(direction, by)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.train_loss(*batch)
            sides.append(self.scaled_grads(loss, [self.trust])[0])
        self.shift(direction, eps)
        self.outer.zero_grad()
        self.trust.grad = -self.inner_lr * (sides[0] - sides[1]) / (2 * eps)
        self.outer.step()

    def inner_step(self, batch):
        self.inner.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.train_loss(*batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.inner)
        self.scaler.update()


bilevel = Bilevel()
clean_x = torch.randn(64, BANDS, device=device)
clean = clean_x, moisture(clean_x)
for step in range(200):
    bilevel.outer_step(crowd(256), clean)
    bilevel.inner_step(crowd(256))

x = torch.randn(3000, BANDS, device=device)
with torch.no_grad():
    error = (bilevel.model(x).squeeze(1) - moisture(x)).pow(2).mean() / moisture(x).var()
print(f"metric {error.item():.4f}")
