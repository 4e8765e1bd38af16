# Session recommender: a background thread prepares packed batches (features and item ids in one tensor) for the model.
import queue, threading
import torch, torch.nn as nn, torch.nn.functional as F

ITEMS, DENSE, BATCH, STEPS = 6000, 6, 256, 120
device = "cuda" if torch.cuda.is_available() else "cpu"


class Prefetcher(threading.Thread):
    def __init__(self, seed):
        super().__init__(daemon=True)
        self.q = queue.Queue(maxsize=4)
        g = torch.Generator().manual_seed(seed)
        self.g = g
        self.label_of = (torch.rand(ITEMS, generator=g) < 0.5).float()

    def run(self):
        for _ in range(STEPS):
            dense = torch.randn(BATCH, DENSE, generator=self.g)
            ids = torch.randint(ITEMS, (BATCH, 1), generator=self.g)
            p = torch.sigmoid(dense[:, 0] + 4 * (self.label_of[ids[:, 0]] - 0.5))
            y = (torch.rand(BATCH, generator=self.g) < p).float()
            packed = torch.cat([dense, ids.float()], 1).to(torch.float16)    # one small transfer per batch
            self.q.put((packed, y))
        self.q.put(None)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.EmbeddingBag(ITEMS + 1, 16, mode="sum")
        self.dense = nn.Linear(DENSE, 16)
        self.top = nn.Sequential(nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, packed):
        ids = packed[:, -1].long()
        return self.top(torch.cat([self.dense(packed[:, :-1]), self.item(ids[:, None])], 1)).squeeze(1)


torch.manual_seed(89)
net = Net().to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
loader = Prefetcher(7)
loader.start()
avg = 0.7
for step, (packed, y) in enumerate(iter(loader.q.get, None)):
    with torch.autocast(device, dtype=torch.float16):
        loss = F.binary_cross_entropy_with_logits(net(packed.to(device)), y.to(device))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    avg += 0.05 * (loss.item() - avg)
    if step % 30 == 0 or step == STEPS - 1:
        print(step, f"{avg:.4f}")
