"""Forecast the frequency of a power grid (Hz) for the next intervals from recent load and generation."""
import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

NOMINAL, SPREAD = 50.0, 0.05
FEATURES, AHEAD = 24, 16
STEPS, BATCH = 250, 256


class LeanHuber(torch.autograd.Function):
    """Huber loss that keeps little for the backward pass; the targets of a batch are long."""

    @staticmethod
    def forward(ctx, pred, target, delta):
        ctx.save_for_backward(pred.to(torch.bfloat16), target.to(torch.bfloat16))
        ctx.delta = delta
        diff = pred - target
        small = diff.abs() <= delta
        return torch.where(small, 0.5 * diff**2, delta * (diff.abs() - 0.5 * delta)).mean() / delta**2

    @staticmethod
    def backward(ctx, grad):
        pred, target = ctx.saved_tensors
        diff = (pred - target).float().clamp(-ctx.delta, ctx.delta)
        return grad * diff / (diff.numel() * ctx.delta**2), None, None


mix = torch.randn(FEATURES, 6, device=device) / FEATURES**0.5
shape = torch.randn(6, AHEAD, device=device) / 6**0.5


def make_windows(n):
    x = torch.randn(n, FEATURES, device=device)
    drive = torch.tanh(1.5 * (x @ mix))
    swing = drive @ shape + 0.5 * (drive[:, :1] * drive[:, 1:2]).expand(-1, AHEAD)
    hertz = NOMINAL + SPREAD * (swing + 0.05 * torch.randn(n, AHEAD, device=device))
    return x, hertz


class Forecaster(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(),
                                 nn.Linear(dim, AHEAD))

    def forward(self, x):
        return NOMINAL + SPREAD * self.net(x).float()


train, test = make_windows(20000), make_windows(4000)
model = Forecaster().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

for step in range(STEPS):
    pick = torch.randint(0, 20000, (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pred = model(train[0][pick])
    loss = LeanHuber.apply(pred, train[1][pick], 2 * SPREAD)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    error = (model(test[0]) - test[1]) / SPREAD
print(f"metric {error.pow(2).mean().sqrt().item():.4f}")
