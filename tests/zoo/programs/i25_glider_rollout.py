"""A glider's height controller, trained through a differentiable rollout; a Function bounds what flows back in time."""

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.float16
BATCH, HORIZON, STEPS, DT = 128, 24, 120, 0.1


class BoundGrad(torch.autograd.Function):
    """Passes the state on, and bounds each element of its gradient (long rollouts explode otherwise)."""

    @staticmethod
    def forward(ctx, state, limit):
        ctx.limit = limit
        return state.view_as(state)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-ctx.limit, ctx.limit), None


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, state, goal):
        return self.net(torch.cat([state, goal], dim=-1)).squeeze(-1)


def dynamics(state, lift):
    height, speed = state.unbind(-1)
    speed = speed + DT * (4.0 * lift - 0.3 * speed - 0.2 * torch.sin(2.0 * height))
    return torch.stack([height + DT * speed, speed], dim=-1)


def starts(n):
    state = torch.randn(n, 2, device=device) * torch.tensor([1.0, 0.3], device=device)
    return state, torch.randn(n, 1, device=device)


def rollout(controller, state, goal):
    """Return the mean cost of tracking and of effort along the horizon."""
    track, effort = 0.0, 0.0
    for _ in range(HORIZON):
        state = BoundGrad.apply(state, 1.0)
        lift = controller(state, goal)
        state = dynamics(state, lift.float())
        track = track + (state[:, 0] - goal[:, 0]).square().mean()
        effort = effort + lift.float().square().mean()
    return track / HORIZON, effort / HORIZON


controller = Controller().to(device)
optimizer = torch.optim.Adam(controller.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", enabled=torch.finfo(amp_dtype).bits == 16)

for step in range(STEPS):
    state, goal = starts(BATCH)
    with torch.autocast("cuda", dtype=amp_dtype):
        track, effort = rollout(controller, state, goal)
        loss = track + 0.05 * effort
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 30 == 0:
        print(f"step {step} track {track.item():.4f} effort {effort.item():.4f}")

with torch.no_grad():
    track, _ = rollout(controller, *starts(1024))
print(f"final metric: {track.item():.4f}")
