"""Forecast the moisture of grain (percent) along a dryer from its settings."""
import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

TARGET, SPREAD = 14.0, 0.6
FEATURES, AHEAD = 24, 16
STEPS, BATCH = 150, 256


class LeanHuber(torch.autograd.Function):
    """Huber loss that keeps little for the backward pass; the targets of a batch are long."""

    @staticmethod
    def forward(ctx, pred, target, delta):
        ctx.save_for_backward((pred - target).to(torch.bfloat16))
        ctx.delta = delta
        diff = pred - target
        small = diff.abs() <= delta
        return torch.where(small, 0.5 * diff**2, delta * (diff.abs() - 0.5 * delta)).mean() / delta**2

    @staticmethod
    def backward(ctx, grad):
        (diff,) = ctx.saved_tensors
        diff = diff.float().clamp(-ctx.delta, ctx.delta)
        return grad * diff / (diff.numel() * ctx.delta**2), None, None


mix = torch.randn(FEATURES, 6, device=device) / FEATURES**0.5
shape = torch.randn(6, AHEAD, device=device) / 6**0.5


def make_batches(n):
    x = torch.randn(n, FEATURES, device=device)
    drive = torch.tanh(1.5 * (x @ mix))
    course = drive @ shape + 0.5 * (drive[:, :1] * drive[:, 1:2]).expand(-1, AHEAD)
    moisture = TARGET + SPREAD * (course + 0.2 * torch.randn(n, AHEAD, device=device))
    return x, moisture


class DryerNet(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(),
                                 nn.Linear(dim, AHEAD))

    def forward(self, x):
        return TARGET + SPREAD * self.net(x).float()


train, test = make_batches(20000), make_batches(4000)
model = DryerNet().to(device)
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
