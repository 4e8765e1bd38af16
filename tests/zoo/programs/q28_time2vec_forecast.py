import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"


class TimeEncoding(nn.Module):
    def __init__(self, periods=(7.0, 30.44, 365.25)):
        super().__init__()
        self.proj = nn.Linear(1, 2 * len(periods))
        with torch.no_grad():
            omega = torch.tensor([2 * math.pi / p for p in periods])
            self.proj.weight.copy_(torch.cat([omega, omega])[:, None])
            self.proj.bias.copy_(torch.cat([torch.zeros(len(periods)), torch.full((len(periods),), math.pi / 2)]))
        self.proj.requires_grad_(False)

    def forward(self, day):
        return torch.sin(self.proj(day[..., None]))


class SalesForecaster(nn.Module):
    def __init__(self, lags=14, width=48):
        super().__init__()
        self.time = TimeEncoding()
        self.lags = nn.Sequential(nn.Linear(lags, width), nn.GELU())
        self.calendar = nn.Sequential(nn.Linear(6, width), nn.GELU())
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, history, day):
        z = torch.cat([self.lags(history), self.calendar(self.time(day))], dim=-1)
        return self.out(z).squeeze(-1)


day = torch.arange(17500, 20000, dtype=torch.float32)
weekly = torch.tensor([0.0, -0.6, 0.5, 0.1, 0.8, 1.6, -2.0])[(day.long() % 7)]
yearly = 0.8 * torch.sin(2 * math.pi * day / 365.25)
level = torch.cumsum(0.05 * torch.randn(len(day)), 0)
sales = level + weekly + yearly + 0.5 * torch.randn(len(day))
sales = (sales - sales.mean()) / sales.std()

smooth = F.avg_pool1d(F.pad(sales, (6, 0), value=0.0)[None, None], 7, stride=1)[0, 0]
windows = smooth.unfold(0, 14, 1)[:-1].to(device)
target = sales[14:].to(device)
target_day = day[14:].to(device)

model = SalesForecaster().to(device)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(250):
    idx = torch.randint(0, 2000, (64,), device=device)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        pred = model(windows[idx], target_day[idx])
        loss = F.mse_loss(pred, target[idx])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 0 or step == 249:
        print(f"step {step:3d} mse {loss.item():.4f}")
