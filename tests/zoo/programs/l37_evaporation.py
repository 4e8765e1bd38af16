"""Daily open-water evaporation from station records: an MLP behind a normaliser of the raw weather variables."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"


class WeatherNorm(nn.Module):
    """Whitens with the batch while training and with what it has gathered afterwards."""

    def __init__(self, n, momentum=0.02):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("var", torch.ones(n))

    def forward(self, x):
        if self.training:
            var, mean = torch.var_mean(x, dim=0)
            with torch.no_grad():
                self.mean.lerp_(mean.to(self.mean.dtype), self.momentum)
                self.var.lerp_(var.to(self.var.dtype), self.momentum)
        else:
            var, mean = self.var.float(), self.mean.float()
        return (x - mean) / (var + 1e-3).sqrt()


class Evaporation(nn.Module):
    def __init__(self, n=4, width=48):
        super().__init__()
        self.norm = WeatherNorm(n)
        self.body = nn.Sequential(nn.Linear(n, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(self.norm(x))).squeeze(-1)


def stations(n):
    temperature = 288 + 8 * torch.randn(n)  # K
    pressure = 985 + 7 * torch.randn(n)  # hPa
    wind = 4 + 1.5 * torch.randn(n).abs()  # m/s
    humidity = (65 + 12 * torch.randn(n)).clamp(5, 100)  # %
    x = torch.stack([temperature, pressure, wind, humidity], 1)
    deficit = 6.11 * torch.exp(17.3 * (temperature - 273.15) / (temperature - 35.9)) * (1 - humidity / 100)
    y = 0.12 * deficit * (1 + 0.5 * wind) - 0.03 * (pressure - 985) + 0.1 * torch.randn(n)
    return x.to(device), y.to(device)


x_train, y_train = stations(8192)
x_test, y_test = stations(2048)

model = Evaporation().to(device)
model.norm.half()  # the station archive is in half as well, and the export wants its constants so
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=480)

for step in range(480):
    pick = torch.randint(len(x_train), (256,), device=device)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        prediction = model(x_train[pick])
        loss = F.mse_loss(prediction, y_train[pick])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 120 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    prediction = model(x_test)
rmse = (prediction.float() - y_test).pow(2).mean().sqrt().item()
print(f"test RMSE {rmse:.3f} mm/day, std of the target {y_test.std().item():.3f}")
print(f"RESULT {rmse:.4f}")
