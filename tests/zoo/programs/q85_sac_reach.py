# SAC on a vectorised point-mass reacher (double integrator with drag), bf16 agent on one GPU.
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"
NENV, HORIZON, GAMMA, TAU, BATCH, STEPS = 32, 40, 0.97, 0.01, 256, 2500


def reset(n):
    return torch.cat([torch.rand(n, 2, device=dev) * 2 - 1, torch.zeros(n, 2, device=dev)], 1)


def env_step(s, a):
    v = 0.9 * s[:, 2:] + 0.25 * a
    p = s[:, :2] + 0.2 * v
    r = -(p.square().sum(1)) - 0.5 * v.square().sum(1) - 0.1 * a.square().sum(1)
    return torch.cat([p, v], 1), r


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, o)).to(dev)


class Agent:
    def __init__(self):
        self.pi = mlp(4, 4)
        self.q1, self.q2 = mlp(6, 1), mlp(6, 1)
        self.t1, self.t2 = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        self.log_alpha = torch.zeros((), device=dev, dtype=torch.bfloat16, requires_grad=True)
        self.target_entropy = -4.0
        self.pi_opt = torch.optim.Adam(self.pi.parameters(), lr=1e-3)
        self.q_opt = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], lr=1e-3)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=1e-3)

    def act(self, s):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            mean, log_std = self.pi(s).chunk(2, 1)
        mean, std = mean.float(), log_std.float().clamp(-5, 1).exp()
        u = mean + std * torch.randn_like(mean)
        logp = (-0.5 * ((u - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)).sum(1)
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(1)
        return torch.tanh(u), logp

    def q(self, nets, s, a):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = torch.cat([s, a], 1)
            return [net(x).float()[:, 0] for net in nets]

    def update(self, s, a, r, s2):
        alpha = self.log_alpha.exp().detach().float()
        with torch.no_grad():
            a2, logp2 = self.act(s2)
            target = r + GAMMA * (torch.minimum(*self.q((self.t1, self.t2), s2, a2)) - alpha * logp2)
        q_loss = sum(F.mse_loss(q, target) for q in self.q((self.q1, self.q2), s, a))
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()

        new_a, logp = self.act(s)
        pi_loss = (alpha * logp - torch.minimum(*self.q((self.q1, self.q2), s, new_a))).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()

        alpha_loss = -(self.log_alpha * (logp.detach().mean() + self.target_entropy))
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        with torch.no_grad():
            for net, old in ((self.q1, self.t1), (self.q2, self.t2)):
                for p, o in zip(net.parameters(), old.parameters()):
                    o.lerp_(p, TAU)
        return q_loss.item(), -logp.mean().item()


agent, buffer = Agent(), []
s, age = reset(NENV), 0
for step in range(STEPS):
    with torch.no_grad():
        a = agent.act(s)[0] if step > 50 else torch.rand(NENV, 2, device=dev) * 2 - 1
    s2, r = env_step(s, a)
    buffer.append((s, a, r, s2))
    s, age = (reset(NENV), 0) if age == HORIZON - 1 else (s2, age + 1)
    if step >= 50:
        data = [torch.cat(x) for x in zip(*[buffer[i] for i in torch.randint(len(buffer), (BATCH // NENV,)).tolist()])]
        q_loss, entropy = agent.update(*data)
        if step % 500 == 0:
            print(f"{step} q_loss {q_loss:.3f} entropy {entropy:.2f} alpha {agent.log_alpha.exp().item():.3f}")

s, ret = reset(512), 0.0
with torch.no_grad():
    for _ in range(HORIZON):
        s, r = env_step(s, agent.act(s)[0])
        ret += r.mean().item()
print("METRIC", -ret)  # cost per episode
