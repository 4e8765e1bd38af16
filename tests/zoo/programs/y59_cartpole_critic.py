"""Fitted Q evaluation on logged data of a pole balancer; a dashboard thread watches the critic."""
import copy
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, s):
        return self.f(s)


class Dashboard(threading.Thread):
    """Gets 16-bit snapshots of the critic; keeps half-precision totals. Display only."""

    def __init__(self):
        super().__init__(daemon=True)
        self.q = queue.Queue()
        self.total = torch.zeros((), dtype=torch.float16, device=device)
        self.spread = []

    def run(self):
        while (item := self.q.get()) is not None:
            snap, states = item
            with torch.no_grad():
                v = snap(states.half())
                self.total += v.abs().sum() * 100         # saturates after a while
                self.spread.append(float(v.std()))


class Logged:
    def __init__(self, gen):
        self.gen = gen
        self.w = torch.tensor([0.5, 0.3, 2.0, 0.7])

    def sample(self, n):
        s = torch.randn(n, 4, generator=self.gen)
        a = torch.randint(0, 2, (n,), generator=self.gen)
        s2 = 0.95 * s + 0.1 * (a.float()[:, None] * 2 - 1) * self.w + 0.02 * torch.randn(n, 4, generator=self.gen)
        r = torch.exp(-(s2 * self.w).square().sum(-1))
        return [t.to(device) for t in (s, a, r, s2)]


def main():
    torch.manual_seed(79)
    logged = Logged(torch.Generator().manual_seed(5))
    critic = Critic().to(device)
    target = copy.deepcopy(critic)
    opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=8192.0)
    board = Dashboard()
    board.start()
    td = []
    for step in range(300):
        s, a, r, s2 = logged.sample(128)
        with torch.autocast(device, dtype=torch.float16):
            with torch.no_grad():
                boot = r + 0.9 * target(s2).float().max(1).values
            q = critic(s).float().gather(1, a[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(q, boot)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        with torch.no_grad():
            for p, t in zip(critic.parameters(), target.parameters()):
                t.lerp_(p, 0.02)
        if step % 10 == 0:
            board.q.put((copy.deepcopy(critic).half(), s))
        td.append(loss.item())
        if step % 60 == 0:
            print(step, f"td {loss.item():.5f} q {q.mean().item():.3f}")
    board.q.put(None)
    board.join()
    print("dashboard total", board.total.item())
    print(f"FINAL loss={sum(td[-30:]) / 30:.5f} q={q.mean().item():.4f}")


main()
