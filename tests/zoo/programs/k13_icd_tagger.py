"""Tagging discharge summaries with diagnosis groups: half-precision network, FP32 master copies, static loss scale."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, TAGS, LENGTH, BATCH, STEPS = 400, 16, 16, 32, 150
SCALE = 2.0 ** 15
MAX_NORM = 5.0


class Tagger(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.mix = nn.ModuleList([nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(),
                                                nn.Linear(2 * dim, dim)) for _ in range(2)])
        self.pool = nn.Linear(dim, 1)
        self.head = nn.Linear(dim, TAGS)

    def forward(self, tokens):
        h = self.emb(tokens)
        for block in self.mix:
            h = h + block(h)
        a = self.pool(h).float().softmax(1).to(h.dtype)
        return self.head((a * h).sum(1)).float()


gen = torch.Generator().manual_seed(3)
topic_words = torch.stack([torch.randperm(VOCAB, generator=gen)[:12] for _ in range(TAGS)])


def batch(n):
    y = torch.randint(0, TAGS, (n,), generator=gen)
    tokens = torch.randint(0, VOCAB, (n, LENGTH), generator=gen)
    cue = topic_words[y].gather(1, torch.randint(0, 12, (n, 5), generator=gen))
    tokens[:, :5] = cue
    return tokens[:, torch.randperm(LENGTH, generator=gen)].to(device), y.to(device)


model = Tagger().to(device).half()
params = list(model.parameters())
masters = [p.detach().float().clone().requires_grad_() for p in params]
opt = torch.optim.Adam(masters, lr=4e-3)


def optimize(loss):
    for p in params:
        p.grad = None
    (loss * SCALE).backward()
    if not all(torch.isfinite(p.grad).all() for p in params):
        return False
    torch.nn.utils.clip_grad_norm_(params, MAX_NORM * SCALE)
    for m, p in zip(masters, params):
        m.grad = p.grad.float() / SCALE
    opt.step()
    with torch.no_grad():
        for m, p in zip(masters, params):
            p.copy_(m)
    return True


test_x, test_y = batch(256)
done = 0
for step in range(STEPS):
    x, y = batch(BATCH)
    # rare groups count for more in the hospital's billing
    weight = 1.0 + 4.0 * (y % 3 == 0).float()
    loss = (F.cross_entropy(model(x), y, reduction="none") * weight).mean()
    done += optimize(loss)
    if step % 30 == 29:
        with torch.no_grad():
            acc = (model(test_x).argmax(-1) == test_y).float().mean()
        print(f"step {step + 1}  loss {loss.item():.3f}  accuracy {acc.item():.3f}  updates {done}")
