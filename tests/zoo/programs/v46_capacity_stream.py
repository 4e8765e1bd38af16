"""Capacity fade of lithium cells from streamed cycling data; one optimiser step per recorded block of cycles."""

import torch
from torch import nn

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp = torch.bfloat16
CELLS, BLOCKS, LIVES = 96, 700, 3


def fleet(n):
    """Usage of n cells: each has its own habit of depth and temperature, with seasons on top."""
    habit = 0.4 + 1.2 * torch.rand(n, 1)
    season = 1 + 0.4 * torch.sin(torch.arange(BLOCKS) / 60 + 6.28 * torch.rand(n, 1))
    depth = habit * season * (0.7 + 0.6 * torch.rand(n, BLOCKS))
    temp = 25 + 8 * torch.randn(n, 1) + 6 * torch.sin(torch.arange(BLOCKS) / 90 + 6.28 * torch.rand(n, 1))
    throughput = 0.004 * depth
    heat = 0.004 * torch.exp((temp - 25) / 15)
    total, ageing = throughput.cumsum(1), heat.cumsum(1)
    capacity = 1 - 0.08 * total.sqrt() - 0.03 * total - 0.02 * ageing
    noise = 0.002 * torch.randn(n, BLOCKS)
    return throughput.to(device), heat.to(device), ((temp - 25) / 10).to(device), (capacity + noise).to(device), capacity.to(device)


class FadeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def start(self, n):
        return torch.zeros(n, 2, device=device, dtype=amp)

    def forward(self, history, throughput, heat, temp):
        history = history + torch.stack([throughput, heat], 1).to(history.dtype)
        now = torch.stack([temp, 200 * throughput], 1).to(history.dtype)
        fade = self.net(torch.cat([history, now], 1)).squeeze(1)
        return history, 1 - 0.1 * fade.float()


train, test = fleet(CELLS), fleet(CELLS)
model = FadeModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, LIVES * BLOCKS, 2e-5)

for life in range(LIVES):
    history, running = model.start(CELLS), 0.0
    for t in range(BLOCKS):
        throughput, heat, temp, measured, _ = (series[:, t] for series in train)
        with torch.autocast("cuda", dtype=amp):
            history, predicted = model(history, throughput, heat, temp)
            loss = nn.functional.mse_loss(100 * predicted, 100 * measured)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        running += loss.item()
    print(f"life {life} loss {running / BLOCKS:.4f}")

errors = []
with torch.no_grad(), torch.autocast("cuda", dtype=amp):
    history = model.start(CELLS)
    for t in range(BLOCKS):
        throughput, heat, temp, _, true = (series[:, t] for series in test)
        history, predicted = model(history, throughput, heat, temp)
        errors.append((predicted - true).square().mean())
rmse = 100 * torch.stack(errors).mean().sqrt()
print(f"held-out cells: RMSE of capacity in per cent {rmse.item():.3f}")
print(f"METRIC {rmse.item():.5f}")
