import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

PAGES, WORDS, DIM, BATCH, QUEUE, STEPS = 600, 800, 48, 64, 512, 150


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, DIM, mode="mean")
        self.fc = nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, DIM))

    def forward(self, words):
        return F.normalize(self.fc(self.bag(words)).float(), dim=-1)


class PassageQueue:
    """The last passages' vectors, in half to save memory, used as extra negatives."""

    def __init__(self, size, dim):
        self.vectors = F.normalize(torch.randn(size, dim, device=device), dim=-1).half()
        self.owner = torch.full((size,), -1, device=device)
        self.mean = torch.zeros(dim, dtype=torch.float16, device=device)
        self.head = 0

    @torch.no_grad()
    def push(self, vectors, owner):
        n = len(owner)
        where = (self.head + torch.arange(n, device=device)) % len(self.owner)
        self.vectors[where] = vectors.detach().half()
        self.owner[where] = owner
        self.mean.mul_(0.9).add_(vectors.detach().mean(0).half(), alpha=0.1)
        self.head = (self.head + n) % len(self.owner)


passages = torch.randint(0, WORDS, (PAGES, 20))
model = Encoder().to(device)
queue = PassageQueue(QUEUE, DIM)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 14)

for step in range(STEPS):
    rows = torch.randint(0, PAGES, (BATCH,))
    cols = torch.rand(BATCH, 20).argsort(1)[:, :7]
    question = passages[rows].gather(1, cols).to(device)
    passage, rows = passages[rows].to(device), rows.to(device)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        q, p = model(question), model(passage)
        negatives = torch.cat([p, queue.vectors.float()])
        owners = torch.cat([rows, queue.owner])
        scores = q @ negatives.t() / 0.2
        clash = owners[None, :] == rows[:, None]
        clash[torch.arange(BATCH), torch.arange(BATCH)] = False
        scores = scores.masked_fill(clash, -6e4)
        loss = F.cross_entropy(scores, torch.arange(BATCH, device=device))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    queue.push(p, rows)
    if step % 30 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f} drift {queue.mean.float().norm().item():.4f}")

with torch.no_grad():
    hit = (model(passages[:, :7].to(device)) @ model(passages.to(device)).t()).argmax(1).cpu() == torch.arange(PAGES)
print(f"recall@1 {hit.float().mean().item():.3f}")
