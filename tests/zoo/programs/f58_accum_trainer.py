"""Trainer with gradient accumulation, own dynamic loss scale and global-norm clipping for a small byte-level model."""
import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(13)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CTX, DIM, HEADS = 64, 32, 64, 4


class DynamicScale:
    def __init__(self, value=2.0 ** 24, window=40):
        self.value, self.window, self.streak = value, window, 0

    def adjust(self, overflow):
        if overflow:
            self.value *= 0.5
            self.streak = 0
        else:
            self.streak += 1
            if self.streak == self.window:
                self.value, self.streak = self.value * 2, 0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc, self.out = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.out(F.gelu(self.fc(self.n2(x))))


class ByteLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(CTX, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


rule = torch.randint(0, VOCAB, (VOCAB, 2), device=device)


def text(n):
    ids = [torch.randint(0, VOCAB, (n,), device=device)]
    for _ in range(CTX):
        ids.append(rule[ids[-1], (torch.rand(n, device=device) < 0.2).long()])
    return torch.stack(ids, 1)


model = ByteLM().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scale, ACCUM, MAX_NORM = DynamicScale(), 4, 0.5
skipped = 0
for update in range(60):
    opt.zero_grad(set_to_none=True)
    s, total = scale.value, 0.0
    for _ in range(ACCUM):
        ids = text(8)
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / ACCUM
        (loss * s).backward()
        total += loss.item()
    norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM * s)
    overflow = not math.isfinite(norm.item())
    if overflow:
        skipped += 1
    else:
        for p in model.parameters():
            p.grad.div_(s)
        opt.step()
    scale.adjust(overflow)
    if update % 10 == 9:
        print(f"update {update + 1:3d}  loss {total:.4f}  norm {norm.item() / s:.3f}  log2 scale {math.log2(scale.value):.0f}")
print(f"skipped {skipped} updates")
