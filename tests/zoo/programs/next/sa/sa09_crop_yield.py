"""Crop yield from season weather; a weight average is kept and a 16-bit copy of it is served."""
import copy

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"

WEEKS, CHANNELS = 20, 3
response = torch.randn(WEEKS * CHANNELS, 5) / 5


def seasons(n):
    weather = torch.randn(n, WEEKS, CHANNELS)
    weather[:, 1:] = 0.7 * weather[:, :-1] + 0.7 * weather[:, 1:]
    growth = torch.tanh(weather.flatten(1) @ response)
    harvest = growth.sum(1) + growth[:, 0] * growth[:, 1] + 0.1 * torch.randn(n)
    return weather.flatten(1).to(device), harvest.to(device)


class YieldNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(WEEKS * CHANNELS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.body(x).squeeze(-1)


class WeightAverage:
    """Exponential moving average of a model's weights."""

    def __init__(self, model, decay=0.99, dtype=torch.float32):
        self.decay = decay
        self.shadow = {k: v.detach().to(dtype, copy=True) for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for name, value in model.state_dict().items():
            average = self.shadow[name]
            average.mul_(self.decay).add_(value.to(average.dtype), alpha=1 - self.decay)

    def export(self, model, dtype):
        served = copy.deepcopy(model).to(dtype)
        served.load_state_dict({k: v.to(dtype) for k, v in self.shadow.items()})
        return served.eval()


x_train, y_train = seasons(5000)
x_test, y_test = seasons(3000)
model = YieldNet().to(device)
average = WeightAverage(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)

for step in range(700):
    pick = torch.randint(len(x_train), (128,), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        harvest = model(x_train[pick])
    loss = F.mse_loss(harvest.float(), y_train[pick])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    average.update(model)
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")

served = average.export(model, torch.bfloat16)
with torch.no_grad():
    guess = served(x_test.to(torch.bfloat16)).float()
    error = (guess - y_test).pow(2).mean().sqrt()
print(f"metric {error.item():.4f}")
