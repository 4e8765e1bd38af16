"""Asynchronous actors for a 6-joint arm: actor threads play with a copy of the policy, the learner does clipped PG."""
import copy
import queue
import threading

import torch
from torch import nn

JOINTS, ENVS, ROLL, ACTORS = 6, 64, 16, 2
device = "cuda" if torch.cuda.is_available() else "cpu"
actor_dtype = torch.bfloat16


class Policy(nn.Module):
    def __init__(self, hid=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 * JOINTS, hid), nn.Tanh(), nn.Linear(hid, hid), nn.Tanh(), nn.Linear(hid, JOINTS))
        self.log_std = nn.Parameter(torch.full((JOINTS,), -4.6))        # the arm is precise: about half a degree

    def forward(self, obs):
        return self.net(obs), self.log_std

    @staticmethod
    def log_prob(mu, log_std, act):
        z = (act - mu) * torch.exp(-log_std)
        return (-0.5 * z.square() - log_std - 0.919).sum(-1)


class Arm:
    """Set points for the joints follow the commanded ones; the reward is the distance to the wanted pose."""

    def __init__(self, gen):
        self.gen = gen
        self.q = torch.zeros(ENVS, JOINTS)
        self.goal = self.draw()
        self.load = torch.zeros(ENVS, JOINTS)

    def draw(self):
        return 1.5 * (2 * torch.rand(ENVS, JOINTS, generator=self.gen) - 1)

    def obs(self):
        return torch.cat([self.q, self.goal, self.load], 1)

    def step(self, cmd):
        self.q = cmd.float().cpu() + 0.1 * self.load
        err = (self.q - self.goal).square().mean(1)
        self.load = 0.7 * self.load + 0.1 * torch.randn(ENVS, JOINTS, generator=self.gen)
        renew = torch.rand(ENVS, generator=self.gen) < 0.2
        self.goal = torch.where(renew[:, None], self.draw(), self.goal)
        return -err


class Actor(threading.Thread):
    def __init__(self, n, seed):
        super().__init__(daemon=True)
        self.weights, self.rollouts = queue.Queue(1), queue.Queue(1)
        self.gen = torch.Generator().manual_seed(seed + n)
        self.env = Arm(self.gen)

    @torch.no_grad()
    def run(self):
        while (policy := self.weights.get()) is not None:
            out = []
            for _ in range(ROLL):
                obs = self.env.obs().to(device, actor_dtype)
                mu, log_std = policy(obs)
                noise = torch.randn(ENVS, JOINTS, generator=self.gen).to(device, actor_dtype)
                act = mu + noise * log_std.exp()
                out.append((obs, act, Policy.log_prob(mu, log_std, act), self.env.step(act).to(device)))
            self.rollouts.put([torch.cat(t) for t in zip(*out)])


class Learner:
    def __init__(self, seed=0, lr=5e-4, clip=0.2):
        torch.manual_seed(seed)
        self.policy = Policy().to(device)
        self.warm_start()
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.clip = clip
        self.actors = [Actor(n, 100 * seed + 1) for n in range(ACTORS)]

    def warm_start(self, steps=60):
        """Behaviour cloning of "command the goal" before the fine tuning."""
        opt = torch.optim.Adam(self.policy.net.parameters(), lr=5e-3)
        for _ in range(steps):
            obs = torch.randn(512, 3 * JOINTS, device=device)
            loss = (self.policy.net(obs) - obs[:, JOINTS:2 * JOINTS]).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    def snapshot(self):
        return copy.deepcopy(self.policy).to(actor_dtype).requires_grad_(False)

    def loss(self, obs, act, behaviour, reward):
        mu, log_std = self.policy(obs.float())                         # the learner stays in full precision
        logp = Policy.log_prob(mu, log_std, act.float())
        ratio = (logp - behaviour.float()).exp()
        adv = (reward - reward.mean()) / (reward.std() + 1e-6)
        return -torch.minimum(ratio * adv, ratio.clamp(1 - self.clip, 1 + self.clip) * adv).mean()

    def train(self, rounds=100, epochs=2):
        log = []
        for a in self.actors:
            a.start()
        for it in range(rounds):
            for a in self.actors:
                a.weights.put(self.snapshot())
            data = [torch.cat(t) for t in zip(*[a.rollouts.get() for a in self.actors])]
            for _ in range(epochs):
                for idx in torch.randperm(len(data[0]), device=device).chunk(2):
                    self.opt.zero_grad()
                    loss = self.loss(*[t[idx] for t in data])
                    loss.backward()
                    nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                    self.opt.step()
            log.append(data[3].mean().item())
            if it % 10 == 9:
                print(f"round {it + 1:3d}  mean reward {sum(log[-10:]) / 10:.5f}")
        for a in self.actors:
            a.weights.put(None)
            a.join()
        return log


if __name__ == "__main__":
    Learner().train()
