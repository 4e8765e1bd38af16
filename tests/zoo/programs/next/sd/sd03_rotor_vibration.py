"""Model of a rotor's three-axis vibration from the logger's clock, for subtraction from a sensor's signal.

The harmonic expansion is wide, so that it is recomputed in the backward pass.
"""
import math

import torch
from torch import nn

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
SPEED_HZ, HARMONICS, STEPS, BATCH = 23.7, 6, 150, 256


class Recompute(torch.autograd.Function):
    """Runs `fn(clock)` without a graph and once more in the backward pass; only the clock is kept."""

    @staticmethod
    def forward(ctx, fn, clock, *params):
        ctx.fn, ctx.params = fn, params
        ctx.save_for_backward(clock.half())
        return fn(clock)

    @staticmethod
    def backward(ctx, grad):
        (clock,) = ctx.saved_tensors
        with torch.enable_grad(), torch.autocast("cuda", dtype=torch.float16):
            out = ctx.fn(clock.float())
        return (None, None, *torch.autograd.grad(out, ctx.params, grad))


class Rotor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * HARMONICS, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 3)
        )

    def expand(self, clock):
        turns = clock / 1000 * SPEED_HZ
        angle = 2 * math.pi * (turns - turns.floor())
        order = torch.arange(1, HARMONICS + 1, device=clock.device)
        phase = angle[:, None] * order
        return torch.cat([phase.sin(), phase.cos()], dim=1)

    def segment(self, clock):
        return self.net(self.expand(clock))

    def forward(self, clock):
        return Recompute.apply(self.segment, clock, *self.net.parameters())


def recording(count):
    """Clock in ms since power-up (the machine needs 20 s to reach its speed) and acceleration in g."""
    clock = 20000 + torch.randint(0, 40000, (count,)).float() + torch.randint(0, 4, (count,)) / 4
    angle = 2 * math.pi * clock.double() / 1000 * SPEED_HZ
    axes = [
        torch.sin(angle) + 0.4 * torch.cos(2 * angle + 0.5),
        torch.tanh(2 * torch.cos(angle + 1.0)) + 0.3 * torch.sin(3 * angle),
        0.7 * torch.cos(angle) * torch.sin(2 * angle + 0.2),
    ]
    signal = torch.stack(axes, dim=1).float()
    return clock.to(device), (signal + 0.05 * torch.randn_like(signal)).to(device)


train_t, train_a = recording(16384)
test_t, test_a = recording(4096)
model = Rotor().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)

for step in range(STEPS):
    rows = torch.randint(0, len(train_t), (BATCH,)).to(device)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(train_t[rows]), train_a[rows])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    residual = model(test_t).float() - test_a
print("metric", round((residual.square().mean() / test_a.var()).item(), 4))
