"""DAgger for a planar two-link arm: the learner drives, the expert labels, and the memory of all labels is compact."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
DEV = "cuda" if torch.cuda.is_available() else "cpu"
LINKS, TICKS, ARMS, CAPACITY = (0.5, 0.4), 30, 64, 16384


def tip(q):
    """Where the tip is, in metres."""
    one, two = q[:, 0], q[:, 0] + q[:, 1]
    return torch.stack(
        [LINKS[0] * one.cos() + LINKS[1] * two.cos(), LINKS[0] * one.sin() + LINKS[1] * two.sin()], 1
    )


def expert(q, goal):
    """Damped least squares towards the goal, as joint velocities in rad/s."""
    one, two = q[:, 0], q[:, 0] + q[:, 1]
    far = torch.stack([-LINKS[1] * two.sin(), LINKS[1] * two.cos()], 1)
    near = torch.stack([-LINKS[0] * one.sin(), LINKS[0] * one.cos()], 1) + far
    jac = torch.stack([near, far], 2)
    pull = (goal - tip(q)) * 4
    square = jac @ jac.transpose(1, 2) + 0.02 * torch.eye(2, device=q.device)
    return (jac.transpose(1, 2) @ torch.linalg.solve(square, pull[..., None])).squeeze(-1).clamp(-3, 3)


def start(n):
    q = torch.stack([torch.rand(n) * 2 - 1, torch.rand(n) * 1.6 + 0.5], 1)
    goal = tip(torch.stack([torch.rand(n) * 2 - 1, torch.rand(n) * 1.6 + 0.5], 1))
    return q.to(DEV), goal.to(DEV)


def observe(q, goal):
    return torch.cat([q.sin(), q.cos(), goal, tip(q)], 1)


class Memory:
    """A ring of observations and labels in half precision, drawn by how badly each was fitted of late."""

    def __init__(self):
        self.obs = torch.zeros(CAPACITY, 8, dtype=torch.float16, device=DEV)
        self.act = torch.zeros(CAPACITY, 2, dtype=torch.float16, device=DEV)
        self.badness = torch.zeros(CAPACITY, dtype=torch.bfloat16, device=DEV)
        self.written = 0

    def add(self, obs, act):
        rows = (torch.arange(len(obs), device=DEV) + self.written) % CAPACITY
        self.obs[rows], self.act[rows], self.badness[rows] = obs.half(), act.half(), 1.0
        self.written += len(obs)

    def draw(self, n):
        return torch.multinomial(self.badness[: self.written].float() + 0.05, n, replacement=True)

    def fitted(self, rows, error):
        self.badness[rows] = 0.5 * self.badness[rows] + 0.5 * error.clamp(max=2).to(self.badness.dtype)


def drive(policy, memory=None, mix=0.0, n=ARMS):
    """Run the arms; with probability `mix` an arm obeys the expert."""
    q, goal = start(n)
    for _ in range(TICKS):
        obs, label = observe(q, goal), expert(q, goal)
        if memory is not None:
            memory.add(obs, label)
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            own = policy(obs).float()
        q = q + 0.05 * torch.where(torch.rand(n, 1, device=DEV) < mix, label, own)
    return (tip(q) - goal).norm(dim=1)


policy = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 2)).to(DEV)
opt = torch.optim.AdamW(policy.parameters(), lr=2e-3, weight_decay=1e-3)
memory = Memory()
ROUNDS = 14
for round_ in range(ROUNDS):
    drive(policy, memory, mix=0.6**round_)
    for group in opt.param_groups:
        group["lr"] = 2e-3 * (1 - round_ / ROUNDS)
    for _ in range(150):
        rows = memory.draw(256)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            error = F.smooth_l1_loss(policy(memory.obs[rows].float()), memory.act[rows].float(), reduction="none")
        opt.zero_grad()
        error.mean().backward()
        opt.step()
        memory.fitted(rows, error.detach().sum(1))
    if round_ % 3 == 1:
        print(f"round {round_ + 1} fit {error.mean().item():.4f} labels {memory.written}")
print(f"METRIC {100 * drive(policy, n=2000).mean().item():.3f}")
