"""Surrogate for a finite-element solver: predicts nodal displacements (in metres) from load parameters.
Four replica threads compute gradients, a collector thread averages what arrives on the wire."""
import copy
import queue
import threading
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)

WORKERS, ROUNDS, NODES = 4, 160, 64
bend = torch.randn(3, 12)
mix = torch.randn(12, NODES) / 12 ** 0.5


def loads(n, gen):
    p = torch.rand(n, 3, generator=gen) * 2 - 1
    disp = (torch.sin(2.5 * p @ bend) @ mix + 0.4) * 8e-4      # metres
    return p.to(device), disp.to(device)


class Surrogate(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.field = nn.Linear(64, NODES)
        nn.init.normal_(self.field.weight, std=1e-4)
        nn.init.zeros_(self.field.bias)

    def forward(self, p):
        return self.field(self.encoder(p))


class Replica(threading.Thread):
    def __init__(self, rank, master, inbox, outbox):
        super().__init__(daemon=True)
        self.rank, self.inbox, self.outbox = rank, inbox, outbox
        self.net = copy.deepcopy(master)
        self.gen = torch.Generator().manual_seed(100 + rank)

    def run(self):
        while True:
            weights = self.inbox.get()
            if weights is None:
                return
            self.net.load_state_dict(weights)
            x, y = loads(64, self.gen)
            with torch.autocast(device_type=device, dtype=torch.bfloat16):
                out = self.net(x)
            loss = (out.float() - y).square().mean()
            self.net.zero_grad()
            loss.backward()
            parcel = [p.grad.to(torch.float16) for p in self.net.parameters()]
            self.outbox.put((self.rank, parcel, loss.item()))


class Collector(threading.Thread):
    """Waits for one parcel per replica and hands the mean to the optimizer."""

    def __init__(self, inbox, result):
        super().__init__(daemon=True)
        self.inbox, self.result = inbox, result

    def run(self):
        for _ in range(ROUNDS):
            got = sorted((self.inbox.get() for _ in range(WORKERS)), key=lambda t: t[0])
            mean = [torch.stack([g.float() for g in gs]).mean(0) for gs in zip(*(t[1] for t in got))]
            self.result.put((mean, sum(t[2] for t in got) / WORKERS))


master = Surrogate().to(device)
opt = torch.optim.Adam([{"params": master.encoder.parameters(), "lr": 4e-3},
                        {"params": master.field.parameters(), "lr": 3e-5}], eps=1e-14)
wire, averaged = queue.Queue(), queue.Queue()
replicas = [Replica(r, master, queue.Queue(), wire) for r in range(WORKERS)]
collector = Collector(wire, averaged)
for t in replicas + [collector]:
    t.start()

for rnd in range(ROUNDS):
    snapshot = {k: v.detach().clone() for k, v in master.state_dict().items()}
    for r in replicas:
        r.inbox.put(snapshot)
    mean, loss = averaged.get()
    for p, g in zip(master.parameters(), mean):
        p.grad = g
    opt.step()
    if rnd % 40 == 0:
        print(f"round {rnd:3d}  rms error {loss ** 0.5 * 1e3:.4f} mm")
for r in replicas:
    r.inbox.put(None)
for t in replicas + [collector]:
    t.join()

with torch.no_grad():
    x, y = loads(512, torch.Generator().manual_seed(9))
    final = (master(x) - y).square().mean().sqrt() / y.std()
print(f"held-out error relative to the spread of the field: {final.item():.3f}")
