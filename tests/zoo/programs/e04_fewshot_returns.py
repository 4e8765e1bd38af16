"""First-order MAML for intraday return forecasting: adapt a forecaster to one instrument from a short support window."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

torch.manual_seed(5)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOOKBACK, HORIZON, SUPPORT, QUERY = 24, 48, 512, 256
INNER_LR, INNER_STEPS = 2.0, 3


class Forecaster(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LOOKBACK, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, HORIZON)

    def forward(self, x):
        return self.head(self.body(x))


def instrument():
    """Inputs are z-scored past returns; targets are raw one-minute returns (about a basis point)."""
    loading = torch.randn(LOOKBACK, HORIZON) / LOOKBACK**0.5
    drift = 1e-4 * torch.randn(HORIZON)

    def sample(n):
        x = torch.randn(n, LOOKBACK)
        y = drift + 1e-4 * (x @ loading) + 3e-5 * torch.randn(n, HORIZON)
        return x.to(device), y.to(device)

    return sample(SUPPORT), sample(QUERY)


def adapt(model, x, y):
    fast = {n: p for n, p in model.named_parameters()}
    for _ in range(INNER_STEPS):
        with torch.autocast(device_type=device.type, dtype=torch.float16):
            inner_loss = F.mse_loss(functional_call(model, fast, (x,)), y)
        grads = torch.autograd.grad(inner_loss, list(fast.values()))
        fast = {n: p - INNER_LR * g for (n, p), g in zip(fast.items(), grads)}
    return fast


model = Forecaster().to(device)
nn.init.zeros_(model.head.weight)
nn.init.zeros_(model.head.bias)
meta_opt = torch.optim.Adam(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler(device.type)

for it in range(80):
    (xs, ys), (xq, yq) = instrument()
    fast = adapt(model, xs, ys)
    with torch.autocast(device_type=device.type, dtype=torch.float16):
        outer_loss = F.mse_loss(functional_call(model, fast, (xq,)), yq)
    meta_opt.zero_grad(set_to_none=True)
    grads = torch.autograd.grad(scaler.scale(outer_loss), list(fast.values()))
    for p, g in zip(model.parameters(), grads):
        p.grad = g.detach().clone()
    scaler.step(meta_opt)
    scaler.update()
    if it % 10 == 0 or it == 79:
        print(f"iter {it:2d} query rmse {1e4 * outer_loss.item() ** 0.5:.3f} bp")

before, after = [], []
for _ in range(20):
    (xs, ys), (xq, yq) = instrument()
    fast = adapt(model, xs, ys)
    with torch.no_grad():
        before.append(F.mse_loss(model(xq), yq).item())
        after.append(F.mse_loss(functional_call(model, fast, (xq,)), yq).item())
rmse_before = 1e4 * (sum(before) / len(before)) ** 0.5
rmse_after = 1e4 * (sum(after) / len(after)) ** 0.5
print(f"new instruments: rmse before adaptation {rmse_before:.3f} bp, after {rmse_after:.3f} bp")
