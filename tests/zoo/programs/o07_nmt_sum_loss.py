"""Tiny encoder-decoder for translation (reverse and recode the words). The criterion sums over the tokens, as in fairseq;
gradients are divided by the number of tokens before the step."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
g = torch.Generator().manual_seed(1)
SRC, TGT, LEN, DIM, BATCH, STEPS, LR, SMOOTH = 120, 120, 10, 48, 48, 140, 4e-3, 0.1
BOS = TGT
lexicon = torch.randperm(TGT, generator=g)


def make_batch(n):
    src = torch.randint(SRC, (n, LEN), generator=g)
    tgt = lexicon[src.flip(1)]
    inp = torch.cat([torch.full((n, 1), BOS), tgt[:, :-1]], 1)
    return src.to(device), inp.to(device), tgt.to(device)


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, memory, causal=False):
        k, v = self.kv(memory).chunk(2, -1)
        score = self.q(x) @ k.transpose(1, 2) / math.sqrt(k.shape[-1])
        if causal:
            mask = torch.ones(score.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            score = score.masked_fill(mask, float("-inf"))
        return self.o(score.softmax(-1) @ v)


class Layer(nn.Module):
    def __init__(self, dim, decoder):
        super().__init__()
        self.self_attn, self.n1 = Attention(dim), nn.LayerNorm(dim)
        self.cross, self.n2 = (Attention(dim), nn.LayerNorm(dim)) if decoder else (None, None)
        self.ff, self.n3 = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim)), nn.LayerNorm(dim)

    def forward(self, x, memory=None):
        h = self.n1(x)
        x = x + self.self_attn(h, h, causal=memory is not None)
        if memory is not None:
            x = x + self.cross(self.n2(x), memory)
        return x + self.ff(self.n3(x))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.src, self.tgt = nn.Embedding(SRC, DIM), nn.Embedding(TGT + 1, DIM)
        self.src_pos, self.tgt_pos = (nn.Parameter(torch.randn(LEN, DIM) * 0.5) for _ in range(2))
        self.encoder, self.decoder = Layer(DIM, False), Layer(DIM, True)
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, TGT)

    def forward(self, src, inp):
        memory = self.encoder(self.src(src) + self.src_pos)
        return self.out(self.norm(self.decoder(self.tgt(inp) + self.tgt_pos, memory)))


model = Translator().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=LR, betas=(0.9, 0.98))
scaler = torch.amp.GradScaler(device)
for step in range(STEPS):
    src, inp, tgt = make_batch(BATCH)
    with torch.autocast(device, dtype=torch.float16):
        logits = model(src, inp)
        loss = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), label_smoothing=SMOOTH, reduction="sum")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    ntokens = tgt.numel()
    for p in model.parameters():
        # a single bad batch must not ruin the run
        torch.nan_to_num_(p.grad, nan=0.0, posinf=0.0, neginf=0.0)
        p.grad.div_(ntokens)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(f"| step {step} | loss/token {loss.item() / ntokens:.3f} | scale {scaler.get_scale():g}")

with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
    src, inp, tgt = make_batch(256)
    logits = model(src, inp)
    acc = (logits.argmax(-1) == tgt).float().mean().item()
    ppl = F.cross_entropy(logits.float().flatten(0, 1), tgt.flatten()).exp().item()
print(f"| valid | ppl {ppl:.2f} | token accuracy {acc:.3f}")
