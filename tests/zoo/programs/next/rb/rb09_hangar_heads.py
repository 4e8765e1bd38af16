"""Comfort and heat demand of hangars from weather and use: one trunk, two heads."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

HEAT_MEAN, HEAT_STD = 82000.0, 21000.0  # kWh per month
STEPS, BATCH = 200, 128


def make_months(n):
    x = torch.randn(n, 10, device=device)
    cold = torch.tanh(0.7 * x[:, 0] + 0.4 * x[:, 1]) + 0.4 * torch.relu(x[:, 2]) * torch.sigmoid(x[:, 3])
    comfort = torch.sin(x[:, 4]) + 0.5 * x[:, 5] * torch.sigmoid(cold) + 0.1 * torch.randn(n, device=device)
    heat = HEAT_MEAN + HEAT_STD * (cold + 0.1 * torch.randn(n, device=device))
    return x, comfort, heat


class HangarNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.comfort = nn.Linear(dim, 1)
        self.heat = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.trunk(x)
        heat = self.heat(h).squeeze(1).float()
        return {"comfort": self.comfort(h).squeeze(1), "heat": heat * HEAT_STD + HEAT_MEAN}


train, test = make_months(12000), make_months(3000)
model = HangarNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
skipped = 0

for step in range(STEPS):
    pick = torch.randint(0, 12000, (BATCH,), device=device)
    x, comfort, heat = (column[pick] for column in train)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
        losses = {
            "comfort": F.mse_loss(out["comfort"].float(), comfort),
            "heat": ((out["heat"] - heat) / HEAT_STD).pow(2).mean(),
        }
        # a meter that reports rubbish must not spoil the other task
        loss = sum(value for value in losses.values() if torch.isfinite(value))
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 50 == 0:
        print(f"step {step} " + " ".join(f"{name} {value.item():.4f}" for name, value in losses.items()))

print(f"skipped {skipped}")
model.eval()
with torch.no_grad():
    out = model(test[0])
comfort_error = (out["comfort"] - test[1]).pow(2).mean().sqrt()
heat_error = ((out["heat"] - test[2]) / HEAT_STD).pow(2).mean().sqrt()
print(f"metric {(comfort_error + heat_error).item() / 2:.4f}")
