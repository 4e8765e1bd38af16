"""Intraday (5 minute bars) deep hedging of a call spread: simulation workers push gradients to one parameter server thread-safely."""
import math
import queue
import threading

import torch
import torch.nn as nn

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"

WORKERS, PATHS, BARS, ROUNDS = 3, 256, 10, 100
SIGMA, DT, K1, K2 = 0.2, 1 / (252 * 78), 1.0, 1.002


class Hedger(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.premium = nn.Parameter(torch.zeros(()))

    def forward(self, paths):
        pnl = self.premium
        for t in range(BARS):
            s = paths[:, t]
            left = torch.full_like(s, (BARS - t) / BARS)
            delta = self.net(torch.stack([(s - 1.0) * 400.0, left], dim=1)).squeeze(1)
            pnl = pnl + delta * (paths[:, t + 1] - s)
        payoff = (paths[:, -1] - K1).clamp_min(0) - (paths[:, -1] - K2).clamp_min(0)
        return pnl - payoff


def simulate(n, gen):
    z = torch.randn(n, BARS, generator=gen)
    steps = (SIGMA * math.sqrt(DT) * z - 0.5 * SIGMA ** 2 * DT).cumsum(1)
    return torch.cat([torch.ones(n, 1), steps.exp()], dim=1).to(device)


class Server:
    def __init__(self, model, lr):
        self.model = model
        self.inbox = queue.Queue()
        self.opt = torch.optim.Adam(model.parameters(), lr=lr, eps=1e-12)

    def apply(self, n):
        parts = dict(self.inbox.get() for _ in range(n))
        for i, p in enumerate(self.model.parameters()):
            p.grad = sum(parts[k][i].float() for k in sorted(parts))
        self.opt.step()


def worker(rank, server, losses):
    replica = Hedger().to(device)
    gen = torch.Generator().manual_seed(100 + rank)
    while True:
        start.wait()
        if stop.is_set():
            return
        replica.load_state_dict(server.model.state_dict())
        replica.zero_grad()
        err = replica(simulate(PATHS, gen))
        loss = err.square().sum() / (PATHS * WORKERS)
        loss.backward()
        losses[rank] = loss.item() * WORKERS
        server.inbox.put((rank, [p.grad.half() for p in replica.parameters()]))
        done.wait()


server = Server(Hedger().to(device), lr=3e-3)
start, done, stop = threading.Barrier(WORKERS + 1), threading.Barrier(WORKERS + 1), threading.Event()
losses = [0.0] * WORKERS
pool = [threading.Thread(target=worker, args=(r, server, losses), daemon=True) for r in range(WORKERS)]
for t in pool:
    t.start()

for rnd in range(ROUNDS):
    start.wait()
    server.apply(WORKERS)
    done.wait()
    if rnd % 20 == 0 or rnd == ROUNDS - 1:
        print(f"round {rnd:3d} hedging rmse {1e4 * math.sqrt(sum(losses) / WORKERS):.2f} bp")
stop.set()
start.wait()
for t in pool:
    t.join()

with torch.no_grad():
    e = server.model(simulate(4096, torch.Generator().manual_seed(1)))
    print(f"test hedging rmse {1e4 * e.std().item():.2f} bp, premium {1e4 * server.model.premium.item():.1f} bp")
