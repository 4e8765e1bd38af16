"""DPR-style dual encoder trained with a large batch by gradient caching (two forward passes per chunk)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(404)
device = "cuda" if torch.cuda.is_available() else "cpu"

WORDS, D, QLEN, PLEN, BATCH, CHUNK, STEPS = 800, 64, 6, 20, 128, 32, 60


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(WORDS, D, mode="mean")
        nn.init.normal_(self.emb.weight, std=0.2)
        self.ln = nn.LayerNorm(D)
        self.fc1, self.fc2 = nn.Linear(D, 2 * D), nn.Linear(2 * D, D, bias=False)

    def forward(self, ids):
        h = self.ln(self.emb(ids))
        return self.fc2(F.gelu(self.fc1(h)))


def pairs(n):
    passages = torch.randint(0, WORDS, (n, PLEN), device=device)
    take = torch.rand(n, PLEN, device=device).argsort(1)[:, :QLEN]
    return passages.gather(1, take), passages


q_enc, p_enc = Encoder().to(device), Encoder().to(device)
params = list(q_enc.parameters()) + list(p_enc.parameters())
opt = torch.optim.AdamW(params, lr=8e-3)
scaler = torch.amp.GradScaler(device)


def amp():
    return torch.autocast(device_type=device, dtype=torch.float16)


def represent(enc, ids):
    with torch.no_grad(), amp():
        return torch.cat([enc(c) for c in ids.split(CHUNK)])


def build_cache(q, p):
    q, p = q.detach().requires_grad_(), p.detach().requires_grad_()
    with amp():
        scores = q @ p.t() / D ** 0.5
        loss = F.cross_entropy(scores, torch.arange(len(q), device=device))
    scaler.scale(loss).backward()
    return loss.detach(), q.grad, p.grad


def replay(enc, ids, cache):
    for c, g in zip(ids.split(CHUNK), cache.split(CHUNK)):
        with amp():
            rep = enc(c)
        rep.backward(g)


for step in range(STEPS):
    queries, passages = pairs(BATCH)
    loss, gq, gp = build_cache(represent(q_enc, queries), represent(p_enc, passages))
    opt.zero_grad(set_to_none=True)
    replay(q_enc, queries, gq)
    replay(p_enc, passages, gp)
    scaler.unscale_(opt)
    norm = torch.nn.utils.clip_grad_norm_(params, 2.0)
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f} grad norm {float(norm):.3f} cache dtype {gq.dtype}")

with torch.no_grad():
    q, p = pairs(500)
    acc = ((q_enc(q) @ p_enc(p).t()).argmax(1).cpu() == torch.arange(500)).float().mean()
print(f"top-1 {acc.item():.3f}")
