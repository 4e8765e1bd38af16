"""Click model for a shop: user, item, price, hour -> click. Rows come packed in one matrix."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
USE_AMP = True
N_USER, N_ITEM, D = 300, 5000, 8
ROOM = 64                      # rows kept free for new items
torch.manual_seed(21)


class Log:
    """rows: [user, item, price, hour]"""

    def __init__(self):
        self.u = torch.randn(N_USER, 4)
        self.v = torch.randn(N_ITEM, 4)
        self.pop = torch.randn(N_ITEM) * 1.5

    def rows(self, n, gen):
        u = torch.randint(0, N_USER, (n,), generator=gen)
        i = torch.randint(0, N_ITEM, (n,), generator=gen)
        price = torch.rand(n, generator=gen) * 3
        hour = torch.randint(0, 24, (n,), generator=gen)
        logit = (self.u[u] * self.v[i]).sum(1) * 0.5 + self.pop[i] - 0.3 * price
        y = (torch.rand(n, generator=gen) < torch.sigmoid(logit)).float()
        return torch.stack([u.float(), i.float(), price, hour.float()], 1), y


class Feeder(threading.Thread):
    def __init__(self, log, n_batches, size):
        super().__init__(daemon=True)
        self.log, self.n, self.size = log, n_batches, size
        self.q = queue.Queue(maxsize=4)
        self.start()

    def run(self):
        gen = torch.Generator().manual_seed(4)
        dtype = torch.float16 if USE_AMP else torch.float32
        for _ in range(self.n):
            x, y = self.log.rows(self.size, gen)
            self.q.put((x.to(device, dtype, non_blocking=True), y.to(device)))
        self.q.put(None)

    def __iter__(self):
        while (item := self.q.get()) is not None:
            yield item


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(N_USER, D)
        self.item = nn.Embedding(N_ITEM + ROOM, D)
        self.item_bias = nn.Embedding(N_ITEM + ROOM, 1)
        nn.init.zeros_(self.item_bias.weight)
        self.mlp = nn.Sequential(nn.Linear(2 * D + 2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        u, i = x[:, 0].long(), x[:, 1].long()
        dense = torch.stack([x[:, 2], x[:, 3] / 24], 1)
        h = torch.cat([self.user(u), self.item(i), dense], 1)
        return (self.mlp(h) + self.item_bias(i)).squeeze(1)


model = Ranker().to(device)
opt = torch.optim.Adam(model.parameters(), lr=0.02)
scaler = torch.amp.GradScaler(device.type, enabled=USE_AMP)
losses = []
for step, (x, y) in enumerate(Feeder(Log(), 250, 1024)):
    opt.zero_grad(set_to_none=True)
    with torch.autocast(device.type, dtype=torch.float16, enabled=USE_AMP):
        logit = model(x)
    loss = F.binary_cross_entropy_with_logits(logit.float(), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    losses.append(loss.item())
    if step % 50 == 0:
        print(step, f"{losses[-1]:.4f}")
print(f"FINAL loss={sum(losses[-20:]) / 20:.4f}")
