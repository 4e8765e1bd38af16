"""Forecast the stage of a river after rain (metres above low water), event by event."""
import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

GAUGES, AHEAD = 10, 6
STEPS, WINDOWS = 260, 96


class StaticScaler:
    """Loss scaling with a constant factor; a step with a gradient that is not finite is left out."""

    def __init__(self, scale):
        self.scale, self.skipped = scale, 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if all(torch.isfinite(grad).all() for grad in grads):
            torch._foreach_mul_(grads, 1 / self.scale)
            optimizer.step()
        else:
            self.skipped += 1
        optimizer.zero_grad(set_to_none=True)


def make_event(storm):
    """The windows of one event; a storm comes with several times the rain."""
    strength = (4.0 + 2.0 * torch.rand(1, device=device)) if storm else (0.2 + 0.6 * torch.rand(1, device=device))
    rain = strength * torch.rand(WINDOWS, GAUGES, device=device)
    basin = rain[:, :5].mean(1, keepdim=True)
    upper = rain[:, 5:].mean(1, keepdim=True)
    lead = torch.arange(1, AHEAD + 1, device=device) / AHEAD
    stage = 0.5 * basin * (1.5 - lead) + 0.6 * torch.relu(upper - 1.0) ** 1.5 * lead
    return rain, stage + 0.02 * torch.randn(WINDOWS, AHEAD, device=device)


class StageNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(GAUGES, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU(),
                                 nn.Linear(dim, AHEAD))

    def forward(self, rain):
        return self.net(rain)


model = StageNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = StaticScaler(2.0**16)

for step in range(STEPS):
    rain, stage = make_event(storm=step % 4 == 3)
    with torch.autocast("cuda", dtype=torch.float16):
        pred = model(rain)
        loss = ((pred.float() - stage) ** 2).mean(0).sum()
    scaler.backward(loss)
    scaler.step(optimizer)
    if step % 52 == 3:
        print(f"step {step} storm loss {loss.item():.4f}")

model.eval()
errors = []
with torch.no_grad():
    for event in range(80):
        rain, stage = make_event(storm=event % 2 == 1)
        errors.append((model(rain) - stage).pow(2).mean().sqrt())
print(f"metric {torch.stack(errors).mean().item():.4f}")
