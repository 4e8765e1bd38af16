"""Soft actor-critic on a one-step thermostat control task (continuous set-point correction)."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
OBS, ACT = 6, 2


def mlp(i, o, h=48):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(OBS, 2 * ACT)

    def forward(self, s):
        mu, log_std = self.body(s).float().chunk(2, -1)
        log_std = log_std.clamp(-4, 1)
        noise = torch.randn_like(mu)
        u = mu + log_std.exp() * noise
        logp = (-0.5 * noise ** 2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
        return torch.tanh(u), logp


class SAC:
    def __init__(self, target_entropy=-float(ACT), lr=1e-3, alpha_lr=3e-4):
        self.actor = Policy().to(device)
        self.q1, self.q2 = mlp(OBS + ACT, 1).to(device), mlp(OBS + ACT, 1).to(device)
        self.log_alpha = torch.full((1,), math.log(0.2), device=device, dtype=torch.float16, requires_grad=True)
        self.target_entropy = target_entropy
        self.opt_actor = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.opt_q = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], lr=lr)
        self.opt_alpha = torch.optim.Adam([self.log_alpha], lr=alpha_lr, eps=1e-4)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 12)

    def q(self, net, s, a):
        return net(torch.cat([s, a], -1)).squeeze(-1)

    def update(self, s, a, r):
        with torch.autocast(device, dtype=torch.float16):
            q_loss = F.mse_loss(self.q(self.q1, s, a), r) + F.mse_loss(self.q(self.q2, s, a), r)
        self.opt_q.zero_grad()
        self.scaler.scale(q_loss).backward()
        self.scaler.step(self.opt_q)

        with torch.autocast(device, dtype=torch.float16):
            pi, logp = self.actor(s)
            q = torch.min(self.q(self.q1, s, pi), self.q(self.q2, s, pi))
            actor_loss = (self.log_alpha.detach().exp() * logp - q).mean()
        self.opt_actor.zero_grad()
        self.scaler.scale(actor_loss).backward()
        self.scaler.step(self.opt_actor)
        self.scaler.update()

        alpha_loss = -(self.log_alpha * (logp.detach() + self.target_entropy)).mean()
        self.opt_alpha.zero_grad()
        alpha_loss.backward()
        self.opt_alpha.step()
        return q_loss.item(), actor_loss.item(), -logp.mean().item()


def reward(s, a):
    want = torch.tanh(torch.stack([s[:, 0] - 0.5 * s[:, 1], s[:, 2] * s[:, 3]], -1))
    return 1.0 - ((a - want) ** 2).sum(-1) * 2.0


agent = SAC()
g = torch.Generator().manual_seed(1)
for it in range(300):
    s = torch.randn(128, OBS, generator=g).to(device)
    with torch.no_grad():
        a, _ = agent.actor(s)
        a = (a + 0.2 * torch.randn(128, ACT, generator=g).to(device)).clamp(-1, 1)
    ql, al, ent = agent.update(s, a, reward(s, a))
    if it % 50 == 0 or it == 299:
        print(f"it {it:3d} q {ql:.4f} actor {al:.4f} entropy {ent:.3f} alpha {agent.log_alpha.exp().item():.5f}")
