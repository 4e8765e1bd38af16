"""Demand of grid stations; training is split into two jobs, with a compact checkpoint between them."""

import copy

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(17)
STATIONS, CALENDAR, HOURS, BATCH = 120, 10, 24, 64


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.station = nn.Embedding(STATIONS, 16)
        self.body = nn.Sequential(nn.Linear(16 + CALENDAR, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, HOURS)

    def forward(self, station, calendar):
        return self.out(self.body(torch.cat([self.station(station), calendar], 1)))


def new_job():
    model = Demand().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return model, optimizer, torch.amp.GradScaler("cuda")


def compact(tree):
    """Return a copy of a state with its floating tensors in half the space."""
    if isinstance(tree, dict):
        return {key: compact(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [compact(value) for value in tree]
    if isinstance(tree, torch.Tensor) and tree.is_floating_point():
        return tree.half()
    return tree


def save(model, optimizer, scaler):
    return {
        "model": copy.deepcopy(model.state_dict()),
        "optimizer": compact(copy.deepcopy(optimizer.state_dict())),
        "scaler": scaler.state_dict(),
    }


def load(state, model, optimizer, scaler):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])


def history(n):
    g = torch.Generator().manual_seed(8)
    level, day = torch.randn(STATIONS, 3, generator=g), torch.randn(3 + CALENDAR, HOURS, generator=g) / 2
    station, calendar = torch.randint(STATIONS, (n,)), torch.randn(n, CALENDAR)
    demand = torch.cat([level[station], calendar], 1) @ day + 0.05 * torch.randn(n, HOURS)
    return station.to(device), calendar.to(device), demand.to(device)


def train(model, optimizer, scaler, data, steps, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr
    for _ in range(steps):
        pick = torch.randint(len(data[0]), (BATCH,), device=device)
        station, calendar, demand = (part[pick] for part in data)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = ((model(station, calendar) - demand) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


data, test = history(6000), history(2000)
model, optimizer, scaler = new_job()
train(model, optimizer, scaler, data, steps=250, lr=4e-3)
checkpoint = save(model, optimizer, scaler)

model, optimizer, scaler = new_job()
load(checkpoint, model, optimizer, scaler)
train(model, optimizer, scaler, data, steps=50, lr=1e-3)

with torch.no_grad():
    error = ((model(*test[:2]) - test[2]) ** 2).mean().item()
print(f"final metric: {error:.4f}")
