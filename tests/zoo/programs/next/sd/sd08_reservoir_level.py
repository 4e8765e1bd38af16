"""Storage of a reservoir from hourly weather: a learned inflow is integrated over the season."""
import torch
from torch import nn

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
HOURS, SITES, STEPS, BATCH = 48, 1024, 80, 64


def seasons(count):
    """Rain, temperature, snow cover per hour; and the storage (in 1e6 m3) at each hour."""
    rain = torch.relu(torch.randn(count, HOURS) + torch.randn(count, 1) * 0.7)
    warmth = torch.randn(count, 1) + 0.3 * torch.randn(count, HOURS)
    snow = torch.rand(count, 1).expand(count, HOURS)
    inflow = 0.3 * rain * torch.sigmoid(2 * warmth) + 0.4 * snow * torch.relu(warmth)
    start = 80 + 60 * torch.rand(count, 1)
    storage = start + torch.cumsum(inflow - 0.25 * torch.sigmoid(warmth), dim=1)
    weather = torch.stack([rain, warmth, snow], dim=2)
    return weather.to(device), start.to(device), storage.to(device)


class Basin(nn.Module):
    def __init__(self):
        super().__init__()
        self.balance = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, weather, start):
        change = self.balance(weather).squeeze(-1)
        level = start[:, 0].to(change.dtype)
        levels = []
        for hour in range(change.shape[1]):
            level = level + change[:, hour]
            levels.append(level)
        return torch.stack(levels, dim=1)


train = seasons(SITES)
test = seasons(256)
model = Basin().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

for step in range(STEPS):
    rows = torch.randint(0, SITES, (BATCH,)).to(device)
    weather, start, storage = (part[rows] for part in train)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        levels = model(weather, start)
    loss = nn.functional.smooth_l1_loss(levels.float(), storage)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()

weather, start, storage = test
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    error = (model(weather, start).float() - storage).abs().mean()
print("metric", round(error.item(), 4))
