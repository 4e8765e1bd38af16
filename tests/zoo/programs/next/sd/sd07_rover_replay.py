"""One-step motion model of a rover, learned from a replay memory while it drives."""
import math

import torch
from torch import nn

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
DT, ROVERS, ROUNDS, UPDATES, BATCH, CAPACITY = 0.05, 64, 50, 4, 256, 20000


class Replay:
    """Ring buffer on the card: state (east, north, heading, speed), command, next state."""

    def __init__(self):
        self.state = torch.zeros(CAPACITY, 4, dtype=torch.float16, device=device)
        self.command = torch.zeros(CAPACITY, 2, dtype=torch.float16, device=device)
        self.after = torch.zeros(CAPACITY, 4, dtype=torch.float16, device=device)
        self.size = self.head = 0

    def push(self, state, command, after):
        where = (self.head + torch.arange(len(state), device=device)) % CAPACITY
        self.state[where] = state.to(self.state.dtype)
        self.command[where] = command.to(self.command.dtype)
        self.after[where] = after.to(self.after.dtype)
        self.head = (self.head + len(state)) % CAPACITY
        self.size = min(self.size + len(state), CAPACITY)

    def sample(self, count):
        rows = torch.randint(0, self.size, (count,)).to(device)
        return self.state[rows].float(), self.command[rows].float(), self.after[rows].float()


def drive(state, command):
    """Skid steering: the tracks slip in curves."""
    east, north, heading, speed = state.unbind(1)
    slip = 1 - 0.3 * torch.tanh(2 * command[:, 1].abs() * speed)
    return torch.stack(
        [
            east + DT * speed * slip * heading.cos(),
            north + DT * speed * slip * heading.sin(),
            torch.remainder(heading + DT * command[:, 1], 2 * math.pi),
            (speed + DT * command[:, 0]).clamp(0.5, 3.0),
        ],
        dim=1,
    )


def spawn(count):
    """Rovers on a site of 3 km by 3 km, metres from the survey point."""
    place = 3000 * torch.rand(count, 2)
    return torch.cat([place, 2 * math.pi * torch.rand(count, 1), 0.5 + 2.5 * torch.rand(count, 1)], 1).to(device)


def inputs(state, command):
    heading = state[:, 2:3]
    return torch.cat([heading.cos(), heading.sin(), state[:, 3:4] / 3, command], dim=1)


model = nn.Sequential(nn.Linear(5, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ROUNDS * UPDATES)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
replay = Replay()
state = spawn(ROVERS * 4)

for round_ in range(ROUNDS):
    command = (2 * torch.rand(len(state), 2) - 1).to(device)
    after = drive(state, command)
    replay.push(state, command, after)
    state = after
    for _ in range(UPDATES):
        old, action, new = replay.sample(BATCH)
        moved = (new[:, :2] - old[:, :2]) / DT  # m/s
        with torch.autocast("cuda", dtype=torch.float16):
            predicted = model(inputs(old, action))
        loss = nn.functional.mse_loss(predicted.float(), moved)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()

state, command = spawn(4096), (2 * torch.rand(4096, 2) - 1).to(device)
state[:, :2] = 0
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    predicted = model(inputs(state, command)).float()
true = drive(state, command)[:, :2] / DT
print("metric", round((predicted - true).square().mean().sqrt().item(), 4))  # m/s
