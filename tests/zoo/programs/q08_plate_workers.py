"""Fit the deflection of a small plate; the quadrature points are shared among worker threads."""
import copy
import math
import queue
import threading

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(8)

SIDE = 1e-3
GRID, WORKERS, STEPS = 48, 2, 150
LOSS_SCALE = 2.0 ** 22

axis = torch.linspace(-1, 1, GRID)
points = torch.cartesian_prod(axis, axis)
field = torch.cos(0.5 * math.pi * points[:, :1]) * torch.cos(1.5 * math.pi * points[:, 1:])
cell_area = SIDE * SIDE / points.shape[0]
order = torch.randperm(points.shape[0])
shards = [(points[i].to(device), field[i].to(device)) for i in order.chunk(WORKERS)]


def make_net():
    return nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)).to(device)


class Worker(threading.Thread):
    def __init__(self, net, shard, inbox, outbox):
        super().__init__(daemon=True)
        self.net, self.shard, self.inbox, self.outbox = net, shard, inbox, outbox

    def pack(self):
        flat = torch.cat([p.grad.flatten() for p in self.net.parameters()]) / LOSS_SCALE
        return flat.to(torch.float16)

    def run(self):
        xy, w = self.shard
        while True:
            weights = self.inbox.get()
            if weights is None:
                return
            nn.utils.vector_to_parameters(weights, self.net.parameters())
            self.net.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                residual = self.net(xy).float() - w
                energy = (cell_area * residual * residual).sum()
            (energy * LOSS_SCALE).backward()
            self.outbox.put((self.pack(), energy.item()))


master = make_net()
optimizer = torch.optim.Adam(master.parameters(), lr=4e-3, eps=1e-16)
outbox = queue.Queue()
workers = [Worker(copy.deepcopy(master), shard, queue.Queue(), outbox) for shard in shards]
for worker in workers:
    worker.start()

for step in range(STEPS):
    weights = nn.utils.parameters_to_vector(master.parameters()).detach()
    for worker in workers:
        worker.inbox.put(weights.clone())
    parts = [outbox.get() for _ in workers]
    grad = sum(g.float() for g, _ in parts)
    energy = sum(e for _, e in parts)
    offset = 0
    for p in master.parameters():
        p.grad = grad[offset:offset + p.numel()].view_as(p).clone()
        offset += p.numel()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step:3d}  energy {energy:.4e}")

for worker in workers:
    worker.inbox.put(None)
for worker in workers:
    worker.join()

with torch.no_grad():
    err = (master(points.to(device)) - field.to(device)).pow(2).mean().sqrt()
print(f"final energy {energy:.4e}  rms error {err.item():.4f}")
