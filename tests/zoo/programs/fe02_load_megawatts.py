import math

import torch
import torch.nn as nn

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"
PEAK_MW = 6000.0


class LossScale:
    """Halves after an overflow, doubles after a while without one."""

    def __init__(self, optimizer, start=2.0**15, window=100):
        self.optimizer = optimizer
        self.value = start
        self.window = window
        self.clean = 0

    def backward(self, loss):
        self.optimizer.zero_grad()
        (loss * self.value).backward()

    def step(self, max_norm):
        params = [p for g in self.optimizer.param_groups for p in g["params"]]
        if not all(torch.isfinite(p.grad).all() for p in params):
            self.value = max(self.value / 2, 1.0)
            self.clean = 0
            return
        for p in params:
            p.grad.div_(self.value)
        nn.utils.clip_grad_norm_(params, max_norm)
        self.optimizer.step()
        self.clean += 1
        if self.clean % self.window == 0:
            self.value *= 2


def mlp(n_in, width, n_out):
    return nn.Sequential(
        nn.Linear(n_in, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, n_out)
    )


class LoadModel(nn.Module):
    """Calendar profile plus a weather correction, 24 hours at once, in units of the peak load."""

    def __init__(self):
        super().__init__()
        self.calendar = mlp(9, 48, 24)
        self.weather = mlp(24, 64, 24)

    def forward(self, calendar, weather):
        return self.calendar(calendar) + self.weather(weather)


def make_days(n):
    day = torch.randint(0, 364, (n,)).float()
    dow = (day % 7).long()
    calendar = torch.cat(
        [
            nn.functional.one_hot(dow, 7).float(),
            torch.sin(2 * math.pi * day / 364)[:, None],
            torch.cos(2 * math.pi * day / 364)[:, None],
        ],
        1,
    )
    hours = torch.arange(24) / 24
    level = 12 + 3 * torch.randn(n, 1) - 6 * torch.cos(2 * math.pi * day / 364)[:, None]
    weather = level + 5 * torch.sin(2 * math.pi * (hours - 0.3)) + torch.randn(n, 24)
    profile = torch.sin(2 * math.pi * (hours - 0.25)) + 0.4 * (dow[:, None] < 5)
    heating = torch.relu(15 - weather) / 4 + torch.relu(weather - 18) / 3
    load = 0.1 * (profile + heating) + 0.01 * torch.randn(n, 24)
    return calendar, (weather - 12) / 8, PEAK_MW * load


def main():
    calendar, weather, load = (t.to(device) for t in make_days(3000))
    model = LoadModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = LossScale(optimizer)
    for step in range(200):
        pick = torch.randint(0, 2400, (128,), device=device)
        with torch.autocast("cuda", dtype=torch.float16):
            out = PEAK_MW * model(calendar[pick], weather[pick]).float()
            loss = nn.functional.mse_loss(out, load[pick])
        scaler.backward(loss)
        scaler.step(max_norm=1e8)
        if step % 40 == 0:
            print(f"step {step:3d}  rmse {loss.item() ** 0.5:.0f} MW")

    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        out = PEAK_MW * model(calendar[2400:], weather[2400:]).float()
    print("metric", round((out - load[2400:]).abs().mean().item(), 2))


main()
