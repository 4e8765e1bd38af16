"""One network for three quantities of a weather station: temperature (C), rain or no rain, and pressure (hPa)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
HISTORY, SENSORS = 12, 8
mix = torch.randn(3, SENSORS)


def weather(n):
    """A latent state (front, heat, moisture) drives the sensors of the last hours and what comes next."""
    t = torch.linspace(0, 1, HISTORY + 1)
    phase = torch.rand(n, 3, 1) * 6.28
    state = torch.sin(phase + t * torch.tensor([2.0, 3.0, 4.0])[None, :, None])
    sensors = torch.einsum("nst,sc->ntc", state[:, :, :HISTORY], mix) + 0.05 * torch.randn(n, HISTORY, SENSORS)
    front, heat, moist = state[:, :, HISTORY].unbind(1)
    temperature = 12 + 6 * heat - 2 * front
    rain = (moist - 0.8 * front + 0.2 * torch.randn(n) > 0.3).float()
    pressure = 1011 + 7 * front - 3 * heat * front
    return sensors.flatten(1).to(device), temperature.to(device), rain.to(device), pressure.to(device)


class Nowcast(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(HISTORY * SENSORS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)
        )
        self.temperature = nn.Linear(width, 1)
        self.rain = nn.Linear(width, 1)
        self.pressure = nn.Linear(width, 1)

    def start(self, temperature, rain, pressure):
        """Begin from the climatological mean of each quantity."""
        nn.init.constant_(self.temperature.bias, temperature.mean().item())
        nn.init.constant_(self.rain.bias, torch.logit(rain.mean()).item())
        nn.init.constant_(self.pressure.bias, pressure.mean().item())

    def forward(self, x):
        h = self.trunk(x)
        temperature = self.temperature(h).squeeze(1)
        rain = self.rain(h).squeeze(1)
        pressure = self.pressure(h).squeeze(1)
        return temperature, rain, pressure


train, test = weather(6000), weather(2000)
model = Nowcast().to(device)
model.start(*train[1:])
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
EPOCHS, BATCH = 20, 128
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)


def evaluate():
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        temperature, rain, pressure = model(test[0])
    model.train()
    hit = ((rain > 0) == (test[2] > 0.5)).float().mean().item()
    return (
        F.mse_loss(temperature.float(), test[1]).sqrt().item(),
        hit,
        F.mse_loss(pressure.float(), test[3]).sqrt().item(),
    )


for epoch in range(EPOCHS):
    for index in torch.randperm(len(train[0])).split(BATCH):
        x, t, r, p = (one[index.to(device)] for one in train)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            temperature, rain, pressure = model(x)
            loss = (
                F.smooth_l1_loss(temperature, t)
                + F.binary_cross_entropy_with_logits(rain, r)
                + F.smooth_l1_loss(pressure, p)
            )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    schedule.step()
    if epoch % 5 == 4:
        t_rmse, hit, p_rmse = evaluate()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f} T rmse {t_rmse:.2f} C, rain hit {hit:.3f}, p rmse {p_rmse:.2f} hPa")

t_rmse, hit, p_rmse = evaluate()
print(f"METRIC {p_rmse:.4f}")
