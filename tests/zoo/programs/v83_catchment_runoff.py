"""River runoff from rain and temperature: a bank of linear reservoirs streamed over decades of daily data."""
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
DAYS, CHUNK, BASINS = 9000, 30, 12


class ReservoirBank(nn.Module):
    """Stores that fill with effective rain and drain with fixed residence times (days)."""

    def __init__(self, residence, dtype):
        super().__init__()
        tau = torch.tensor(residence, dtype=torch.float32)
        self.register_buffer("keep", torch.exp(-1.0 / tau).to(dtype))

    def forward(self, inflow, store):
        keep, fill = self.keep, 1 - self.keep
        levels = []
        for day in range(inflow.shape[1]):
            store = keep * store + fill * inflow[:, day]
            levels.append(store)
        return torch.stack(levels, 1), store


class Runoff(nn.Module):
    def __init__(self, residence=(2.0, 25.0, 900.0), dtype=torch.bfloat16):
        super().__init__()
        self.residence = residence
        self.effective = nn.Sequential(nn.Linear(2, 24), nn.SiLU(), nn.Linear(24, len(residence)))
        self.bank = ReservoirBank(residence, dtype)
        self.outlet = nn.Linear(len(residence), 1)

    def forward(self, weather, store):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            inflow = self.effective(weather)
        level, store = self.bank(inflow.float(), store)
        return self.outlet(level).squeeze(-1), store


def climate(seed):
    gen = torch.Generator().manual_seed(seed)
    season = torch.sin(2 * torch.pi * torch.arange(DAYS) / 365.0)
    regime = torch.zeros(BASINS, DAYS)  # wet and dry spells of several years
    noise = torch.randn(BASINS, DAYS, generator=gen)
    level = torch.randn(BASINS, generator=gen)
    for d in range(DAYS):
        level = 0.9992 * level + 0.04 * noise[:, d]
        regime[:, d] = level
    rain = (0.8 * torch.randn(BASINS, DAYS, generator=gen) + 0.6 * regime).relu()
    temp = season + 0.3 * torch.randn(BASINS, DAYS, generator=gen)
    weather = torch.stack([rain, temp], -1)
    excess = rain * torch.sigmoid(-1.5 * temp)
    flow, quick, ground = torch.zeros(BASINS, DAYS), torch.zeros(BASINS), torch.zeros(BASINS)
    for d in range(DAYS):
        quick = quick + (excess[:, d] - quick) / 2.5
        ground = ground + (rain[:, d] - ground) / 900.0
        flow[:, d] = 0.8 * quick + 5.0 * ground
    return weather.to(device), (flow + 0.03 * torch.randn(BASINS, DAYS, generator=gen)).to(device)


torch.manual_seed(1)
weather, flow = climate(31)
model = Runoff().to(device)
opt = torch.optim.Adam(model.parameters(), lr=6e-3)
store = torch.zeros(BASINS, 3, device=device)
errors = []
for k, start in enumerate(range(0, DAYS, CHUNK)):
    pred, store = model(weather[:, start : start + CHUNK], store.detach())
    obs = flow[:, start : start + CHUNK]
    loss = (pred - obs).square().mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    errors.append(loss.item())
    if (k + 1) % 60 == 0:
        print(f"year {start / 365:5.1f}  mse {sum(errors[-30:]) / 30:.4f}")

last = flow[:, -60 * CHUNK :]
print(f"efficiency (NSE) of the last {60 * CHUNK} days: {1 - sum(errors[-60:]) / 60 / last.var().item():.3f}")
