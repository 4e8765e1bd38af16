"""Soft actor-critic on a one-step control bench: actor, twin critics and an entropy temperature with its own optimizer."""
import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class ValveBench:
    """The reward of a valve setting depends on the distance to a set point that is a function of the readings."""

    def __init__(self, seed=21, obs=10, act=4):
        g = torch.Generator().manual_seed(seed)
        self.obs, self.act, self.gen = obs, act, g
        self.w1 = torch.randn(obs, 16, generator=g) / obs ** 0.5
        self.w2 = torch.randn(16, act, generator=g) * 0.3

    def readings(self, n):
        return torch.randn(n, self.obs, generator=self.gen).to(device)

    def reward(self, s, a):
        goal = torch.tanh(torch.tanh(s @ self.w1.to(s.device)) @ self.w2.to(s.device))
        return 1.0 - 2.0 * ((a - goal) ** 2).mean(1)


def mlp(inp, out, width=256):
    return nn.Sequential(nn.Linear(inp, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))


class Actor(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.net = mlp(obs, 2 * act)

    def forward(self, s):
        mean, log_std = self.net(s).float().chunk(2, 1)
        log_std = log_std.clamp(-4, 1)
        u = mean + log_std.exp() * torch.randn_like(mean)
        logp = (-0.5 * ((u - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)).sum(1)
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(1)
        return torch.tanh(u), logp, torch.tanh(mean)


class Temperature(nn.Module):
    """Entropy weight, tuned towards a target entropy."""

    def __init__(self, start, target, dtype):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(start), dtype=dtype))
        self.target = target

    def value(self):
        return self.log_alpha.detach().float().exp()

    def loss(self, logp):
        return -(self.log_alpha.float() * (logp.detach() + self.target)).mean()


class Replay:
    def __init__(self, size, obs, act):
        self.s, self.a, self.r = torch.zeros(size, obs), torch.zeros(size, act), torch.zeros(size)
        self.size, self.filled, self.head = size, 0, 0

    def push(self, s, a, r):
        i = (self.head + torch.arange(len(s))) % self.size
        self.s[i], self.a[i], self.r[i] = s.cpu(), a.cpu(), r.cpu()
        self.head, self.filled = (self.head + len(s)) % self.size, min(self.size, self.filled + len(s))

    def draw(self, n):
        i = torch.randint(0, self.filled, (n,))
        return self.s[i].to(device), self.a[i].to(device), self.r[i].to(device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=512)
    args = parser.parse_args()
    dtype = torch.bfloat16
    torch.manual_seed(args.seed)
    bench = ValveBench()
    actor = Actor(bench.obs, bench.act).to(device)
    critics = nn.ModuleList(mlp(bench.obs + bench.act, 1) for _ in range(2)).to(device)
    temperature = Temperature(0.3, target=-6.0, dtype=dtype).to(device)
    opt_pi = torch.optim.Adam(actor.parameters(), lr=2e-3)
    opt_q = torch.optim.Adam(critics.parameters(), lr=3e-3)
    opt_t = torch.optim.Adam(temperature.parameters(), lr=7e-3)
    replay = Replay(20000, bench.obs, bench.act)

    for step in range(args.steps):
        with torch.no_grad(), torch.autocast(device, dtype=dtype):
            s = bench.readings(256)
            a, _, _ = actor(s)
        replay.push(s, a, bench.reward(s, a) + 0.1 * torch.randn(len(s), device=device))

        s, a, r = replay.draw(args.batch)
        with torch.autocast(device, dtype=dtype):
            loss_q = sum(F.mse_loss(q(torch.cat([s, a], 1)).squeeze(1).float(), r) for q in critics)
        opt_q.zero_grad(set_to_none=True)
        loss_q.backward()
        opt_q.step()

        with torch.autocast(device, dtype=dtype):
            a, logp, _ = actor(s)
            q = torch.minimum(*(q(torch.cat([s, a], 1)).squeeze(1).float() for q in critics))
            loss_pi = (temperature.value() * logp - q).mean()
        opt_pi.zero_grad(set_to_none=True)
        loss_pi.backward()
        opt_pi.step()

        opt_t.zero_grad(set_to_none=True)
        temperature.loss(logp).backward()
        opt_t.step()
        if step % 50 == 0:
            print(f"step {step:3d} critic {loss_q.item():.4f} actor {loss_pi.item():.4f} alpha {temperature.value().item():.4f}")

    with torch.no_grad(), torch.autocast(device, dtype=dtype):
        s = bench.readings(4000)
        a, logp, best = actor(s)
    explored, greedy = bench.reward(s, a.float()).mean().item(), bench.reward(s, best.float()).mean().item()
    print(f"reward sampled {explored:.4f} greedy {greedy:.4f} alpha {temperature.value().item():.4f}")
    return {"sampled": explored, "greedy": greedy, "alpha": temperature.value().item(), "entropy": -logp.mean().item()}


if __name__ == "__main__":
    main()
