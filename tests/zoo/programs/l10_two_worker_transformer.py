"""Data parallel by hand: two worker threads, each with forward and backward over its shard,
activation checkpointing in every block, gradients averaged on the main thread."""
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(13)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, WIDTH, HEADS, LENGTH, WORKERS = 40, 32, 2, 20, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Decoder(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.emb(ids) + self.pos
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=i % 2 == 1)
        return self.norm(x) @ self.emb.weight.t() / WIDTH ** 0.5


model = Decoder().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
params = list(model.parameters())
shards = [[torch.zeros_like(p) for p in params] for _ in range(WORKERS)]
losses = [0.0] * WORKERS
backward_turn = threading.Lock()


def work(rank, ids):
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    with backward_turn:
        for p in params:
            p.grad = None
        loss.backward()
        for buf, p in zip(shards[rank], params):
            buf.copy_(p.grad)
    losses[rank] = loss.item()


def counting_task(gen, n=16):
    """arithmetic progressions modulo the vocabulary"""
    start = torch.randint(VOCAB, (n, 1), generator=gen)
    stride = torch.randint(1, 4, (n, 1), generator=gen)
    return ((start + stride * torch.arange(LENGTH + 1)) % VOCAB).to(device)


gen = torch.Generator().manual_seed(6)
for step in range(100):
    threads = [threading.Thread(target=work, args=(r, counting_task(gen))) for r in range(WORKERS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for p, *grads in zip(params, *shards):
        p.grad = sum(grads) / WORKERS
    nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    if step % 20 == 0 or step == 99:
        print(f"step {step:2d}  loss {sum(losses) / WORKERS:.4f}")

with torch.no_grad(), torch.autocast(device_type=device, dtype=torch.bfloat16):
    ids = counting_task(gen, 64)
    nll = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
print(f"held-out loss {nll.item():.4f}")
