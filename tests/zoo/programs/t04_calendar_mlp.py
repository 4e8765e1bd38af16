"""Demand forecast from calendar and price features."""
import math

import torch
from torch import nn

torch.manual_seed(16)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
AMP = torch.bfloat16


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.calendar = nn.Linear(4, 32)
        self.price = nn.Linear(3, 32)
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def encode_day(self, day):
        week = 2 * math.pi * (day.float() % 7) / 7
        year = 2 * math.pi * (day.float() % 365.25) / 365.25
        return torch.stack([week.sin(), week.cos(), year.sin(), year.cos()], -1)

    def forward(self, day, prices):
        return self.out(self.calendar(self.encode_day(day)) + self.price(prices)).squeeze(-1)


def batches(n):
    for _ in range(n):
        day = torch.randint(19000, 19730, (256,)).float()
        prices = torch.randn(256, 3)
        demand = 2.0 * torch.sin(2 * math.pi * day / 7) + prices[:, 0] - 0.3 * prices[:, 1]
        yield {"day": day, "prices": prices}, demand


def to_device(features):
    return {k: v.to(device, dtype=AMP) for k, v in features.items()}


model = Forecast().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for step, (features, demand) in enumerate(batches(40)):
    features = to_device(features)
    with torch.autocast(device.type, dtype=AMP):
        pred = model(**features)
        loss = nn.functional.mse_loss(pred.float(), demand.to(device))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 8 == 0:
        print(step, round(loss.item(), 4))
