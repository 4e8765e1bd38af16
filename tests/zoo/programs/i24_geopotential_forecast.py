"""Forecast geopotential at 500 hPa on a coarse ring of stations and keep the best epoch's weights."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)
STATIONS, EPOCHS, ACCUMULATE = 24, 12, 2
Z_MEAN, Z_STD = 54100.0, 3350.0  # m^2 s^-2


def weather(count):
    """Return today's and tomorrow's geopotential (m^2 s^-2): waves that move east at their own speeds."""
    lon = torch.arange(STATIONS) / STATIONS * 2 * torch.pi
    today, tomorrow = torch.zeros(count, STATIONS), torch.zeros(count, STATIONS)
    for wave, speed in ((1, 0.2), (2, 0.35), (3, 0.5), (5, 0.9)):
        phase, height = torch.rand(count, 1) * 6.283, torch.randn(count, 1)
        today += height * torch.cos(wave * lon - phase)
        tomorrow += height * torch.cos(wave * (lon - speed) - phase)
    tomorrow += 0.25 * (torch.tanh(2 * today) - today)
    scale = Z_STD / today.std()
    noise = 0.05 * torch.randn(count, STATIONS)
    return Z_MEAN + scale * today, Z_MEAN + scale * (tomorrow + noise)


def normalize(z):
    """Return geopotential in standard deviations."""
    return ((z - Z_MEAN) / Z_STD).to(device)


train_x, train_y = (normalize(z) for z in weather(1024))
valid_x, valid_y = (normalize(z).half() for z in weather(256))  # stays on the card for the whole run
test_x, test_y = (normalize(z) for z in weather(256))

model = nn.Sequential(
    nn.Linear(STATIONS, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, STATIONS)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")


@torch.no_grad()
def validate():
    """Return the mean squared error in (m^2 s^-2)^2, the score that is reported."""
    model.eval()
    scores = []
    with torch.autocast("cuda", dtype=torch.float16):
        for x, y in zip(valid_x.split(64), valid_y.split(64)):
            error = (model(x) - y) * Z_STD
            scores.append((error * error).mean())
    model.train()
    return torch.stack(scores).mean().item()


best_score, best_weights = float("inf"), copy.deepcopy(model.state_dict())
for epoch in range(EPOCHS):
    order = torch.randperm(len(train_x))
    for index, pick in enumerate(order.split(64)):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(train_x[pick]), train_y[pick]) / ACCUMULATE
        scaler.scale(loss).backward()
        if (index + 1) % ACCUMULATE == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    score = validate()
    if score < best_score:
        best_score, best_weights = score, copy.deepcopy(model.state_dict())
    print(f"epoch {epoch} loss {loss.item() * ACCUMULATE:.4f} best {best_score:.4g}")

model.load_state_dict(best_weights)
with torch.no_grad():
    error = F.mse_loss(model(test_x), test_y)
print(f"final metric: {error.item():.4f}")
