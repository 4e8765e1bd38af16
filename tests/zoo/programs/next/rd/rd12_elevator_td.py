"""Waiting cost of an elevator bank by TD learning, with a target network in bfloat16 and an optimizer of our own."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(37)
device = "cuda" if torch.cuda.is_available() else "cpu"
FLOORS, GAMMA, BATCH, STEPS, SYNC = 10, 0.8, 128, 240, 12


class Momentum(torch.optim.Optimizer):
    """Normalised momentum: the direction is kept as bfloat16, its size is a running norm."""

    def __init__(self, params, lr, beta=0.8):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["steps"], state["size"] = 0, torch.zeros((), device=p.device)
                    state["direction"] = torch.zeros_like(p, dtype=torch.bfloat16)
                state["steps"] += 1
                state["direction"].mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                state["size"].mul_(0.98).add_(p.grad.square().mean(), alpha=0.02)
                size = (state["size"] / (1 - 0.98 ** state["steps"])).sqrt() + 1e-6
                p.add_(state["direction"].float() / size, alpha=-group["lr"])


class Cost(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, state):
        return self.net(state).squeeze(-1)


def encode(floor, load):
    return torch.stack([floor / (FLOORS / 2) - 1, (floor / FLOORS) ** 2, 2 * load - 1], -1)


def transition(floor, load):
    """Passengers come at random; the car moves up or down by one floor, and costs for load and height are paid."""
    cost = load * (0.2 + floor / FLOORS) + 0.1 * (floor - 3).abs() / FLOORS
    move = torch.where(torch.rand_like(floor) < 0.3 + 0.4 * load, 1.0, -1.0)
    return cost, (floor + move).clamp(0, FLOORS), (0.7 * load + 0.3 * torch.rand_like(load)).clamp(0, 1)


online = Cost().to(device)
target = copy.deepcopy(online).to(torch.bfloat16).requires_grad_(False)
optimizer = Momentum(online.parameters(), lr=1e-2)
for step in range(STEPS):
    floor = torch.randint(0, FLOORS + 1, (BATCH,)).float()
    load = torch.rand(BATCH)
    cost, next_floor, next_load = transition(floor, load)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            goal = cost.to(device) + GAMMA * target(encode(next_floor, next_load).to(device)).float()
        value = online(encode(floor, load).to(device))
    loss = F.mse_loss(value.float(), goal)
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * (1 - step / STEPS)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % SYNC == 0:
        target.load_state_dict(online.state_dict())

start_floor, start_load = torch.randint(0, FLOORS + 1, (400,)).float(), torch.rand(400)
floor, load = start_floor.repeat(64), start_load.repeat(64)
total, discount = torch.zeros_like(floor), 1.0
for _ in range(30):
    cost, floor, load = transition(floor, load)
    total, discount = total + discount * cost, discount * GAMMA
truth = total.view(64, 400).mean(0)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    guess = online(encode(start_floor, start_load).to(device)).float().cpu()
print(f"metric {(guess - truth).pow(2).mean().sqrt().item() / truth.std().item():.4f}")
