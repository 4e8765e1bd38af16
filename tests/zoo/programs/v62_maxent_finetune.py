"""Maximum-entropy fine-tuning of a cloned bang-bang controller (SAC-style actor and twin critics)."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
OBS, ACT, BATCH = 12, 4, 256
CLONE_STEPS, FINETUNE_STEPS = 60, 30
ALPHA, GAMMA = 0.2, 0.98
MIN_STD, MAX_STD = 0.1, 1.0


def mlp(n_in, n_out, hidden=64):
    return nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, n_out))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(OBS, 2 * ACT)

    def forward(self, obs):
        mean, raw = self.net(obs).chunk(2, dim=-1)
        return mean, MIN_STD + (MAX_STD - MIN_STD) * torch.sigmoid(raw)

    def sample(self, obs):
        mean, std = self(obs)
        eps = torch.randn_like(std)
        pre = mean + std * eps
        action = torch.tanh(pre)
        logp = -0.5 * eps.pow(2) - std.log() - 0.5 * math.log(2 * math.pi)
        logp = logp - torch.log(1 - action.pow(2) + 1e-6)
        return action, logp.sum(-1)


class TwinCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)

    def forward(self, obs, action):
        x = torch.cat([obs, action], -1)
        return self.q1(x).squeeze(-1), self.q2(x).squeeze(-1)


class Plant:
    """Linear plant with a small control cost; the best control is gentle."""

    def __init__(self, generator):
        self.generator = generator
        self.switch = torch.randn(OBS, ACT, generator=generator)

    def batch(self, n):
        obs = torch.randn(n, OBS, generator=self.generator)
        return obs.to(device), torch.randn(n, OBS, generator=self.generator).to(device)

    def expert(self, obs):
        return 6.0 * torch.sign(obs @ self.switch.to(device))

    def reward(self, obs, action):
        return 0.1 * (obs[:, :ACT] * action).sum(-1) - 0.05 * action.pow(2).sum(-1)


def clone(actor, plant):
    optimizer = torch.optim.Adam(actor.parameters(), lr=5e-3)
    for _ in range(CLONE_STEPS):
        obs, _ = plant.batch(BATCH)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            mean, _ = actor(obs)
            loss = F.mse_loss(mean, plant.expert(obs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def finetune(actor, critic, plant):
    target = copy.deepcopy(critic).requires_grad_(False)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for step in range(FINETUNE_STEPS):
        obs, next_obs = plant.batch(BATCH)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            with torch.no_grad():
                action, _ = actor.sample(obs)
                next_action, next_logp = actor.sample(next_obs)
                backup = torch.min(*target(next_obs, next_action)) - ALPHA * next_logp
                y = plant.reward(obs, action) + GAMMA * 0.5 * backup
            q1, q2 = critic(obs, action)
            critic_loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()

        with torch.autocast("cuda", dtype=torch.bfloat16):
            action, logp = actor.sample(obs)
            actor_loss = (ALPHA * logp - torch.min(*critic(obs, action))).mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critic.parameters()):
                slow.lerp_(fast, 0.02)
        if step % 10 == 9:
            print(f"step {step + 1}: critic {critic_loss.item():.3f} actor {actor_loss.item():.3f} logp {logp.mean().item():.3f}")


def main():
    torch.manual_seed(0)
    plant = Plant(torch.Generator().manual_seed(5))
    actor, critic = Actor().to(device), TwinCritic().to(device)
    print(f"clone loss {clone(actor, plant):.3f}")
    finetune(actor, critic, plant)
    with torch.no_grad():
        obs, _ = plant.batch(1024)
        mean, std = actor(obs)
        print(f"mean |pre-tanh| {mean.abs().mean().item():.3f} std {std.mean().item():.3f} "
              f"saturated {(torch.tanh(mean).abs() > 0.99).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
