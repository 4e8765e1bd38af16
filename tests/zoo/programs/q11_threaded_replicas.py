"""Hand-made data parallelism: one thread per replica, gradients are averaged into the master copy."""
import copy
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
torch.set_autocast_dtype("cuda", torch.bfloat16)  # bf16 everywhere, so no loss scaling is needed
device = "cuda" if torch.cuda.is_available() else "cpu"
WORLD, CLIPS, FRAMES, ACCUM, STEPS = 2, 32, 8, 2, 100
KD_WEIGHT = 0.01


class Embedder(nn.Module):
    def __init__(self, dim=24, width=96, out=128):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.embed = nn.Linear(width, out)

    def forward(self, x):
        return F.normalize(self.embed(self.trunk(x)), dim=-1)


teacher = nn.Sequential(nn.Linear(24, 200), nn.Tanh(), nn.Linear(200, 128)).to(device)
means = torch.randn(40, 1, 24)


def batch(n):
    y = torch.randint(0, 40, (n,))
    x = (means[y] + 0.7 * torch.randn(n, FRAMES, 24)).to(device)
    with torch.no_grad():
        return x, F.normalize(teacher(x), dim=-1)


def work(replica, micro):
    replica.zero_grad(set_to_none=True)
    total = 0.0
    for x, t in micro:
        with torch.autocast("cuda"):
            loss = F.mse_loss(replica(x), t)
        (KD_WEIGHT * loss / ACCUM).backward()
        total += loss.item() / ACCUM
    return total


master = Embedder().to(device)
replicas = [copy.deepcopy(master) for _ in range(WORLD)]
opt = torch.optim.Adam(master.parameters(), lr=2e-3)

with ThreadPoolExecutor(max_workers=WORLD) as pool:
    for step in range(STEPS):
        for r in replicas:
            r.load_state_dict(master.state_dict())
        jobs = [pool.submit(work, r, [batch(CLIPS) for _ in range(ACCUM)]) for r in replicas]
        losses = [j.result() for j in jobs]
        for p, *parts in zip(master.parameters(), *(r.parameters() for r in replicas)):
            p.grad = torch.stack([q.grad for q in parts]).mean(0)
        opt.step()
        if step % 20 == 0:
            print(f"step {step:3d}  loss {sum(losses) / WORLD:.3e}")

x, t = batch(400)
with torch.no_grad(), torch.autocast("cuda"):
    z = master(x).float()
print(f"final distance to the teacher {F.mse_loss(z, t).item():.3e}  cosine {(z * t).sum(-1).mean().item():.4f}")
