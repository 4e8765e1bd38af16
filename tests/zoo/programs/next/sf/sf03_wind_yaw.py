"""Advantage actor-critic that turns a row of wind turbines (yaw offsets against wakes); the reward is power in watts."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"

OFFSETS = torch.tensor([-25.0, -15.0, -5.0, 5.0, 15.0, 25.0], device=device)  # degrees
RATED = 2.0e5  # W, a small turbine
STEPS, BATCH = 320, 256


class Farm:
    """Two turbines in a row: yawing the first costs it power and steers its wake off the second."""

    def observe(self, n):
        speed = 5 + 5 * torch.rand(n, device=device)
        side = torch.rand(n, device=device) * 2 - 1  # where the second stands against the wind, rotor diameters
        veer = torch.randn(n, device=device) * 0.5
        gauges = torch.stack([speed / 10, side, veer, speed / 10 * side], 1)
        return gauges + 0.02 * torch.randn_like(gauges), (speed, side, veer)

    def power(self, truth, action):
        speed, side, veer = truth
        yaw = OFFSETS[action] * torch.pi / 180
        free = (speed / 10) ** 3
        first = free * torch.cos(yaw).clamp(min=0) ** 2
        centre = side + 2.2 * yaw + 0.5 * veer
        wake = 0.75 * torch.exp(-(centre**2) / 0.35)
        return RATED * (first + free * (1 - wake) ** 3)


def mlp(inputs, outputs, width=48):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
    )


farm = Farm()
actor, critic = mlp(4, len(OFFSETS)).to(device), mlp(4, 1).to(device)
opt_actor = torch.optim.Adam(actor.parameters(), lr=1.5e-3)
opt_critic = torch.optim.Adam(critic.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    gauges, truth = farm.observe(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        policy = torch.distributions.Categorical(logits=actor(gauges).float())
        action = policy.sample()
        watts = farm.power(truth, action)
        value = critic(gauges).squeeze(1).float() * RATED
        advantage = (watts - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        actor_loss = -(policy.log_prob(action) * advantage).mean() - 0.01 * policy.entropy().mean()
        critic_loss = F.mse_loss(value, watts)

    opt_actor.zero_grad(set_to_none=True)
    opt_critic.zero_grad(set_to_none=True)
    scaler.scale(actor_loss).backward()
    scaler.scale(critic_loss).backward()
    scaler.step(opt_actor)
    scaler.step(opt_critic)
    scaler.update()

actor.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    gauges, truth = farm.observe(6000)
    chosen = farm.power(truth, actor(gauges).argmax(1)).mean()
    best = torch.stack([farm.power(truth, torch.full_like(gauges[:, 0], k, dtype=torch.long)) for k in range(6)])
    lost = 100 * (1 - chosen / best.amax(0).mean())  # per cent of the power that was to be had
print(f"metric {lost.item():.3f}")
