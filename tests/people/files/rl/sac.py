"""Soft actor-critic, three optimizers, one GradScaler."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda import amp

LOG_STD_MIN, LOG_STD_MAX = -5, 2


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


class SoftQNetwork(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=64):
        super().__init__()
        self.q = mlp([obs_dim + act_dim, hidden, hidden, 1])

    def forward(self, obs, act):
        return self.q(torch.cat([obs, act], 1)).squeeze(-1)


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=64):
        super().__init__()
        self.trunk = mlp([obs_dim, hidden, hidden])
        self.mean, self.log_std = nn.Linear(hidden, act_dim), nn.Linear(hidden, act_dim)

    def forward(self, obs):
        h = F.relu(self.trunk(obs))
        log_std = torch.tanh(self.log_std(h))
        return self.mean(h), LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)

    def sample(self, obs):
        mean, log_std = self(obs)
        dist = torch.distributions.Normal(mean.float(), log_std.float().exp())
        x = dist.rsample()
        a = torch.tanh(x)
        return a, (dist.log_prob(x) - torch.log(1 - a.pow(2) + 1e-6)).sum(1)


class Buffer:
    def __init__(self, n, obs_dim, act_dim, device):
        self.o, self.o2 = torch.randn(n, obs_dim, device=device), torch.randn(n, obs_dim, device=device)
        self.a = torch.rand(n, act_dim, device=device) * 2 - 1
        self.r, self.d = torch.randn(n, device=device), torch.zeros(n, device=device)

    def sample(self, k):
        i = torch.randint(0, len(self.r), (k,), device=self.r.device)
        return self.o[i], self.a[i], self.r[i], self.o2[i], self.d[i]


def update(scaler, optimizer, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=12)
    ap.add_argument("--alpha", type=float, default=0.2)
    ap.add_argument("--gamma", type=float, default=0.99)
    args = ap.parse_args()
    device = torch.device("cuda")
    actor, q1, q2 = Actor(6, 2).to(device), SoftQNetwork(6, 2).to(device), SoftQNetwork(6, 2).to(device)
    t1, t2 = copy.deepcopy(q1), copy.deepcopy(q2)
    q_opt = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=3e-4)
    a_opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
    log_alpha = torch.zeros(1, requires_grad=True, device=device)
    alpha_opt = torch.optim.Adam([log_alpha], lr=3e-4)
    scaler = amp.GradScaler()
    buf = Buffer(500, 6, 2, device)
    for it in range(args.updates):
        o, a, r, o2, d = buf.sample(32)
        with amp.autocast():
            with torch.no_grad():
                a2, lp2 = actor.sample(o2)
                y = r + args.gamma * (1 - d) * (torch.min(t1(o2, a2), t2(o2, a2)) - log_alpha.exp() * lp2)
            q_loss = F.mse_loss(q1(o, a).float(), y.float()) + F.mse_loss(q2(o, a).float(), y.float())
        update(scaler, q_opt, q_loss)
        with amp.autocast():
            pi, lp = actor.sample(o)
            a_loss = (log_alpha.exp().detach() * lp - torch.min(q1(o, pi), q2(o, pi))).mean()
        update(scaler, a_opt, a_loss)
        alpha_loss = (-log_alpha.exp() * (lp.detach() - 2)).mean()
        alpha_opt.zero_grad()
        alpha_loss.backward()
        alpha_opt.step()
        for p, q in zip([*t1.parameters(), *t2.parameters()], [*q1.parameters(), *q2.parameters()]):
            p.data.mul_(0.995).add_(q.data, alpha=0.005)
        print(it, q_loss.item(), a_loss.item(), log_alpha.exp().item())


if __name__ == "__main__":
    main()
