"""Pairwise ranking (BPR) with a prefetch thread that packs a batch into one tensor."""
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 29
STEPS = 260
BATCH = 1024
USERS, ITEMS, DIM = 900, 6000, 16


class Prefetcher(threading.Thread):
    """Samples (user, clicked item, other item, dwell) rows and hands them over packed."""

    def __init__(self, log, steps, batch, generator):
        super().__init__(daemon=True)
        self.log, self.steps, self.batch, self.generator = log, steps, batch, generator
        self.out = queue.Queue(maxsize=4)

    def run(self):
        for _ in range(self.steps):
            idx = torch.randint(0, len(self.log["user"]), (self.batch,), generator=self.generator)
            negatives = torch.randint(1, ITEMS + 1, (self.batch,), generator=self.generator)
            columns = [self.log["user"][idx], self.log["item"][idx], negatives, self.log["dwell"][idx]]
            packed = torch.stack([c.to(torch.float16) for c in columns], dim=1)
            self.out.put(packed)

    def __iter__(self):
        for _ in range(self.steps):
            yield self.out.get()


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, DIM)
        self.items = nn.Embedding(ITEMS + 1, DIM)
        self.quality = nn.Embedding(ITEMS + 1, 1)
        self.mix = nn.Linear(DIM, DIM, bias=False)
        for table in (self.users, self.items, self.quality):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.eye_(self.mix.weight)

    def forward(self, user, item):
        match = (self.mix(self.users(user)) * self.items(item)).sum(-1)
        return match + self.quality(item).squeeze(-1)


def make_log(n, tastes, kinds):
    user = torch.randint(0, USERS, (n,))
    pair = torch.randint(1, ITEMS + 1, (n, 2))
    score = (tastes[user].unsqueeze(1) * kinds[pair]).sum(-1) + 2.0 * kinds[pair][..., 0]
    item = pair.gather(1, score.argmax(1, keepdim=True)).squeeze(1)
    other = pair.gather(1, score.argmin(1, keepdim=True)).squeeze(1)
    return {"user": user, "item": item, "other": other, "dwell": torch.rand(n) + 0.5}


def pair_accuracy(model, log):
    user, item, other = (log[k].to(device) for k in ("user", "item", "other"))
    with torch.no_grad():
        return (model(user, item) > model(user, other)).float().mean().item()


torch.manual_seed(SEED)
tastes, kinds = 0.5 * torch.randn(USERS, 3), torch.randn(ITEMS + 1, 3)
log, val_log = make_log(250000, tastes, kinds), make_log(6000, tastes, kinds)
model = Ranker().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
scaler = torch.amp.GradScaler("cuda")
loader = Prefetcher(log, STEPS, BATCH, torch.Generator().manual_seed(SEED))
loader.start()

for step, packed in enumerate(loader):
    packed = packed.to(device, non_blocking=True)
    user, item, negative = packed[:, :3].long().unbind(1)
    dwell = packed[:, 3].float()
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        margin = model(user, item) - model(user, negative)
        loss = (F.softplus(-margin) * dwell).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 40 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}")

print(f"val pair accuracy {pair_accuracy(model, val_log):.3f}")
