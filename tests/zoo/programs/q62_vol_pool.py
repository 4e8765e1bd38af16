"""Realised volatility of the next hour from the last hour of minute returns of many stocks."""
import torch
from torch import nn

torch.manual_seed(9)
device = "cuda" if torch.cuda.is_available() else "cpu"
STOCKS, MINUTES, BATCH, STEPS = 6000, 32, 64, 230


def sessions(n):
    """Windows of returns with clustered volatility; some stocks do not trade within their window."""
    level = torch.exp(0.6 * torch.randn(n, 1, device=device))
    log_vol = torch.zeros(n, MINUTES, device=device)
    state = torch.zeros(n, device=device)
    for k in range(MINUTES):
        state = 0.95 * state + 0.25 * torch.randn(n, device=device)
        log_vol[:, k] = state
    returns = level * torch.exp(log_vol) * torch.randn(n, MINUTES, device=device)
    volume = torch.exp(0.5 * log_vol + 0.3 * torch.randn(n, MINUTES, device=device))
    ahead = level[:, 0].log() + 0.8 * state + 0.15 * torch.randn(n, device=device)
    silent = torch.rand(n, device=device) < 0.013
    returns[silent], volume[silent] = 0.0, 0.0
    ahead[silent] = -2.0 + 0.15 * torch.randn(int(silent.sum()), device=device)
    return torch.stack([returns, volume], 1), ahead


class StdPool(nn.Module):
    """Mean and deviation over time of each channel."""

    def forward(self, h):
        deviation = (h.var(2, unbiased=False) + 1e-8).sqrt()
        return torch.cat([h.mean(2), deviation], 1)


class VolatilityNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.early = nn.Conv1d(2, width, 5)
        self.late = nn.Conv1d(2, width, 5)
        self.pool = StdPool()
        self.head = nn.Sequential(nn.Linear(4 * width, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        x = torch.cat([x[:, :1].clamp(-20, 20) / 2, x[:, 1:].log1p()], 1)
        whole = self.pool(self.early(x))
        recent = self.pool(self.late(x[:, :, -12:]))
        return self.head(torch.cat([whole, recent], 1)).squeeze(1)


x, y = sessions(STOCKS)
train, held = slice(0, 4500), slice(4500, STOCKS)
model = VolatilityNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
for step in range(STEPS):
    rows = torch.randint(4500, (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = nn.functional.mse_loss(model(x[held]), y[held]).sqrt()
print(f"METRIC {error.item():.4f}")
