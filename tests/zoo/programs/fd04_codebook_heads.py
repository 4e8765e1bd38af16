"""Next-frame model over audio-like tokens with several codebooks; the heads' losses are taken side by side."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)
device = "cuda" if torch.cuda.is_available() else "cpu"
BOOKS, CODES, WIDTH, LENGTH, BATCH = 2, 96, 32, 64, 256
follow = torch.stack([torch.randperm(CODES) for _ in range(BOOKS)]).to(device)


class MultiBookModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(CODES, WIDTH) for _ in range(BOOKS))
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, CODES) for _ in range(BOOKS))

    def forward(self, tokens):
        hidden = sum(embed(tokens[..., i]) for i, embed in enumerate(self.embeds))
        hidden = hidden + self.body(hidden)
        return [head(hidden) for head in self.heads]


def batch(count):
    tokens = torch.randint(0, CODES, (count, LENGTH, BOOKS), device=device)
    targets = torch.stack([follow[i][tokens[..., i]] for i in range(BOOKS)], dim=-1)
    noise = torch.rand(targets.shape, device=device) < 0.05
    return tokens, torch.where(noise, torch.randint_like(targets, CODES), targets)


def book_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


model = MultiBookModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.01)
pool = ThreadPoolExecutor(max_workers=BOOKS)
skipped = 0

for step in range(30):
    for group in optimizer.param_groups:
        group["lr"] = 2e-2 * min(1.0, (step + 1) / 5)
    tokens, targets = batch(BATCH)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(tokens)
        losses = list(pool.map(book_loss, logits, targets.unbind(-1)))
    loss = torch.stack(losses).float().sum() / targets.numel()
    if not torch.isfinite(loss):
        skipped += 1
        continue
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.3f}")

pool.shutdown()
print(f"{skipped} batches skipped")
with torch.no_grad():
    tokens, targets = batch(32)
    right = torch.stack([one.argmax(-1) for one in model(tokens)], dim=-1) == targets
print(f"metric {right.float().mean().item():.4f}")
