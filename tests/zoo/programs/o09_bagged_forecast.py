"""Bagging of small forecasters for electricity prices; every member trains in its own thread with its own scaler."""
from concurrent.futures import ThreadPoolExecutor
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
BACK, AHEAD, MEMBERS, STEPS, BATCH = 48, 24, 3, 100, 128

hours = torch.arange(5000).float()
price = 40 + 12 * torch.sin(2 * math.pi * hours / 24) + 6 * torch.sin(2 * math.pi * hours / 168) + 2 * torch.randn(5000)
wind = torch.zeros(5000)
for i in range(1, 5000):
    wind[i] = 0.95 * wind[i - 1] + 0.6 * torch.randn(()).item()
price = (price - 3 * wind).to(device)
CUT = 4200
mean, std = price[:CUT].mean(), price[:CUT].std()
z = (price - mean) / std


def windows(start):
    pos = start[:, None] + torch.arange(BACK + AHEAD, device=device)
    w = z[pos]
    return w[:, :BACK], w[:, BACK:]


class Forecaster(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(BACK, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.head = nn.Linear(hidden, AHEAD)
        self.skip = nn.Linear(BACK, AHEAD)

    def forward(self, x):
        return self.head(self.net(x)) + self.skip(x)


def fit(k, model, share):
    g = torch.Generator().manual_seed(k)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 12)
    bag = torch.randint(0, CUT - BACK - AHEAD, (2500,), generator=g)
    for step in range(STEPS):
        start = bag[torch.randint(0, len(bag), (BATCH,), generator=g)].to(device)
        x, y = windows(start)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        share.append(loss.item())
    return model


models = nn.ModuleList(Forecaster() for _ in range(MEMBERS)).to(device)
curves = [[] for _ in range(MEMBERS)]
with ThreadPoolExecutor(MEMBERS) as pool:
    list(pool.map(fit, range(MEMBERS), models, curves))
for k, c in enumerate(curves):
    print(f"member {k}: loss {c[0]:.4f} -> {sum(c[-10:]) / 10:.4f}")

start = torch.arange(CUT, 5000 - BACK - AHEAD, 7, device=device)
x, y = windows(start)
with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
    pred = torch.stack([m(x).float() for m in models]).mean(0)
print(f"test MAE {((pred - y).abs().mean() * std).item():.4f}   naive (yesterday) {((x[:, -AHEAD:] - y).abs().mean() * std).item():.4f}")
