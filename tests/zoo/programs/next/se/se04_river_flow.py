"""Discharge of a river gauge (m3/s) from rain and snow of the last days."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
DAYS, STEPS, BATCH = 20, 280, 64
FLOW_MEAN, FLOW_STD = 600.0, 400.0
MIN_SCALE = 128.0  # stops the scale from collapsing to zero


def gauge(count):
    """Days of weather and the discharge that follows."""
    rain = torch.relu(torch.randn(count, DAYS)) * 10
    warm = torch.randn(count, DAYS).cumsum(-1) * 0.8
    memory = torch.exp(-torch.arange(DAYS).flip(0) / 4.0)
    runoff = (rain * memory).sum(-1)
    melt = (torch.relu(warm) * memory).sum(-1)
    flow = 15 * runoff + 60 * melt + 0.2 * runoff * melt + 50
    flow = flow + 10 * torch.randn(count)
    return torch.cat([rain / 10, warm / 3], -1), flow.clamp(0, 6000)


class FlooredScaler(torch.amp.GradScaler):
    """A GradScaler whose scale stays over a least value."""

    def __init__(self, device, floor, **options):
        super().__init__(device, **options)
        self.floor = floor

    def update(self, new_scale=None):
        super().update(new_scale)
        if self.get_scale() < self.floor:
            super().update(self.floor)


class FlowNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2 * DAYS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, weather):
        return self.layers(weather).squeeze(-1).float() * FLOW_STD + FLOW_MEAN


model = FlowNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = FlooredScaler("cuda", MIN_SCALE, init_scale=2.0**14)
train_x, train_q = (v.to(device) for v in gauge(4096))
test_x, test_q = (v.to(device) for v in gauge(2048))

for step in range(STEPS):
    pick = torch.randint(0, len(train_x), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        flow = model(train_x[pick])
        loss = F.mse_loss(flow, train_q[pick])
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 40 == 0:
        print(f"step {step} rmse {loss.item() ** 0.5:.1f} m3/s")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    flow = model(test_x)
unexplained = (flow - test_q).pow(2).sum() / (test_q - test_q.mean()).pow(2).sum()
print(f"metric {unexplained.item():.4f}")
