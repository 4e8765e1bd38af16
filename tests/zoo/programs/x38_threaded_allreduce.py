# Data parallel by hand: each shard's gradient is computed in a thread, buckets are exchanged in half and averaged.
import copy
from concurrent.futures import ThreadPoolExecutor
import torch, torch.nn as nn

torch.manual_seed(97)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORLD = 2


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3000, 16)
        self.tower = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.head = nn.Linear(64, 1)

    def forward(self, i):
        return self.head(self.tower(self.embed(i))).squeeze(1)


def shard_gradient(args):
    replica, i, y = args
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(replica(i), y)
    grads = torch.autograd.grad(loss, list(replica.parameters()))
    return loss.item(), [g.to(torch.float16) for g in grads]


model = Critic().to(device)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
value = 0.004 * torch.randn(3000)
with ThreadPoolExecutor(WORLD) as pool:
    for step in range(120):
        jobs = []
        for r in range(WORLD):
            i = torch.randint(3000, (1024,))
            jobs.append((copy.deepcopy(model), i.to(device), value[i].to(device)))
        out = list(pool.map(shard_gradient, jobs))
        for k, p in enumerate(model.parameters()):
            p.grad = (sum(o[1][k] for o in out) / WORLD).float()
        opt.step()
        if step % 30 == 0 or step == 119:
            print(f"{step} loss {sum(o[0] for o in out) / WORLD:.3e}")
