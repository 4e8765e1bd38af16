"""PPO on a vectorised point-mass task, bf16 autocast in the update."""
import os
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions.normal import Normal
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    num_envs: int = 8
    num_steps: int = 16
    iterations: int = 4
    minibatches: int = 2
    update_epochs: int = 3
    lr: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    ent_coef: float = 0.01
    max_grad_norm: float = 0.5


class PointMass:
    def __init__(self, n, device):
        self.n, self.device = n, device

    def reset(self):
        self.p, self.t = torch.randn(self.n, 2, device=self.device), 0
        return self.p.clone()

    def step(self, a):
        self.p = self.p + 0.1 * a.clamp(-1, 1)
        self.t += 1
        return self.p.clone(), -self.p.norm(dim=1), torch.full((self.n,), float(self.t % 32 == 0), device=self.device)


def layer_init(layer, std=2 ** 0.5, bias=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(obs_dim, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), std=1.0))
        self.actor_mean = nn.Sequential(layer_init(nn.Linear(obs_dim, 64)), nn.Tanh(), layer_init(nn.Linear(64, act_dim), std=0.01))
        self.actor_logstd = nn.Parameter(torch.zeros(1, act_dim))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        mean = self.actor_mean(x)
        dist = Normal(mean.float(), self.actor_logstd.expand_as(mean).exp())
        if action is None:
            action = dist.sample()
        return action, dist.log_prob(action).sum(1), dist.entropy().sum(1), self.critic(x)


if __name__ == "__main__":
    args = Args()
    writer = SummaryWriter(f"runs/{args.exp_name}__{int(time.time())}")
    device = torch.device("cuda")
    envs = PointMass(args.num_envs, device)
    agent = Agent(2, 2).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    global_step, obs = 0, envs.reset()
    for iteration in range(args.iterations):
        O, A, LP, R, D, V = [], [], [], [], [], []
        for _ in range(args.num_steps):
            global_step += args.num_envs
            with torch.no_grad():
                a, lp, _, v = agent.get_action_and_value(obs)
            nxt, r, d = envs.step(a)
            for buf, val in zip((O, A, LP, R, D, V), (obs, a, lp, r, d, v.flatten())):
                buf.append(val)
            obs = nxt
        with torch.no_grad():
            next_v, adv, last = agent.get_value(obs).flatten(), [], 0.0
            for t in reversed(range(args.num_steps)):
                delta = R[t] + args.gamma * next_v * (1 - D[t]) - V[t]
                last = delta + args.gamma * args.gae_lambda * (1 - D[t]) * last
                adv.insert(0, last)
                next_v = V[t]
        adv = torch.cat(adv)
        b_obs, b_act, b_lp, b_ret = torch.cat(O), torch.cat(A), torch.cat(LP), adv + torch.cat(V)
        n = b_obs.size(0)
        for epoch in range(args.update_epochs):
            for mb in torch.randperm(n, device=device).chunk(args.minibatches):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    _, lp, ent, v = agent.get_action_and_value(b_obs[mb], b_act[mb])
                ratio = (lp - b_lp[mb]).exp()
                a_mb = (adv[mb] - adv[mb].mean()) / (adv[mb].std() + 1e-8)
                pg = torch.max(-a_mb * ratio, -a_mb * ratio.clamp(1 - args.clip, 1 + args.clip)).mean()
                loss = pg - args.ent_coef * ent.mean() + 0.5 * ((v.float().view(-1) - b_ret[mb]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        writer.add_scalar("losses/loss", loss.item(), global_step)
        print(f"iteration {iteration} reward {torch.cat(R).mean().item():.3f}")
    writer.close()
