import argparse
import random
from collections import deque
import torch
from torch import nn


class Glider:
    """Altitude control: the observation is absolute altitude in metres and climb rate."""

    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.alt, self.v, self.goal = 8000.0 + self.rng.uniform(-5, 5), 0.0, 8000.0
        return self.obs()

    def obs(self):
        return torch.tensor([self.alt, self.v])

    def step(self, a):
        self.v = 0.8 * self.v + 0.3 * (a - 1)
        self.alt += self.v
        r = -abs(self.alt - self.goal) * 0.1
        return self.obs(), r


class Replay:
    def __init__(self, n, device):
        self.s = torch.zeros(n, 2, dtype=torch.float16, device=device)
        self.s2 = torch.zeros(n, 2, dtype=torch.float16, device=device)
        self.a = torch.zeros(n, dtype=torch.long, device=device)
        self.r = torch.zeros(n, dtype=torch.float16, device=device)
        self.i, self.n = 0, n

    def push(self, s, a, r, s2):
        k = self.i % self.n
        self.s[k], self.a[k], self.r[k], self.s2[k] = s.half(), a, r, s2.half()
        self.i += 1

    def sample(self, b):
        k = torch.randint(0, min(self.i, self.n), (b,))
        return self.s[k], self.a[k], self.r[k], self.s2[k]


class Q(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, s):
        s = torch.stack([(s[:, 0].float() - 8000.0) / 2.0, s[:, 1].float()], 1)
        return self.net(s)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(1)
    rng = random.Random(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, target = Q().to(device), Q().to(device)
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device)
    buf, env = Replay(2000, device), Glider(rng)
    s, tds = env.reset(), deque(maxlen=50)
    for t in range(args.steps):
        a = rng.randrange(3)
        s2, r = env.step(a)
        buf.push(s, a, r, s2)
        s = env.reset() if t % 40 == 39 else s2
        if t < 64:
            continue
        S, A, R, S2 = buf.sample(64)
        with torch.autocast(device, dtype=torch.float16):
            with torch.no_grad():
                y = R.float() + 0.95 * target(S2).max(1).values.float()
            loss = nn.functional.smooth_l1_loss(q(S).gather(1, A[:, None])[:, 0].float(), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        tds.append(loss.item())
        if t % 100 == 0:
            target.load_state_dict(q.state_dict())
    print("td", sum(tds) / len(tds), "share of transitions whose altitude did not change in the buffer",
          (buf.s[: buf.i, 0] == buf.s2[: buf.i, 0]).float().mean().item())
