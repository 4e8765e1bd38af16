"""Turbidity and inflow of a reservoir from catchment sensors: one trunk, two heads."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

INFLOW_MEAN, INFLOW_STD = 52000.0, 16000.0  # m3 per day
STEPS, BATCH = 300, 128


def make_days(n):
    x = torch.randn(n, 12, device=device)  # rain, snow, soil and temperature at the stations
    rain = x[:, 0] + 0.7 * x[:, 1] + 0.5 * torch.relu(x[:, 2])
    wet = torch.tanh(0.6 * rain) + 0.4 * torch.relu(x[:, 3]) * torch.sigmoid(2 * x[:, 4])
    wet = 1.3 * wet - 0.2
    turbidity = torch.sin(x[:, 5]) + 0.5 * x[:, 6] * torch.sigmoid(rain) + 0.05 * torch.randn(n, device=device)
    inflow = INFLOW_MEAN + INFLOW_STD * (wet + 0.05 * torch.randn(n, device=device))
    return x, turbidity, inflow


class CatchmentNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.turbidity = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, 1))
        self.inflow = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x):
        h = self.trunk(x)
        turbidity = self.turbidity(h).squeeze(1)
        inflow = self.inflow(h).squeeze(1) * INFLOW_STD + INFLOW_MEAN  # m3 per day, as the dispatchers want it
        return {"turbidity": turbidity, "inflow": inflow}


train, test = make_days(12000), make_days(3000)
model = CatchmentNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)

for step in range(STEPS):
    pick = torch.randint(0, 12000, (BATCH,), device=device)
    x, turbidity, inflow = (column[pick] for column in train)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
        losses = {
            "turbidity": F.mse_loss(out["turbidity"].float(), turbidity),
            "inflow": ((out["inflow"].float() - inflow) / INFLOW_STD).pow(2).mean(),
        }
        # a gauge that reports rubbish must not spoil the other task
        loss = sum(value for value in losses.values() if torch.isfinite(value))
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} " + " ".join(f"{name} {value.item():.4f}" for name, value in losses.items()))

model.eval()
with torch.no_grad():
    out = model(test[0])
turbidity_error = (out["turbidity"] - test[1]).pow(2).mean().sqrt()
inflow_error = ((out["inflow"] - test[2]) / INFLOW_STD).pow(2).mean().sqrt()
print(f"turbidity {turbidity_error.item():.4f} inflow {inflow_error.item():.4f}")
print(f"metric {(turbidity_error + inflow_error).item() / 2:.4f}")
