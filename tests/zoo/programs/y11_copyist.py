"""Tiny decoder with rotary positions: emit the token that stood three places earlier."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
COMPUTE = torch.bfloat16
VOCAB, D, HEADS, CTX, WINDOW = 12, 64, 2, 4096, 24


class Rotary(nn.Module):
    def __init__(self, dim, max_len, dtype):
        super().__init__()
        inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))
        t = torch.arange(max_len).to(dtype)
        ang = torch.outer(t, inv_freq.to(dtype))
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def forward(self, x, pos):                       # x: b h t d
        c, s = self.cos[pos][:, None], self.sin[pos][:, None]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * c - b * s, a * s + b * c], dim=-1)


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)
        self.rot = Rotary(D // HEADS, CTX, COMPUTE)

    def forward(self, x, pos):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, HEADS, D // HEADS).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        q, k = self.rot(q, pos), self.rot(k, pos)
        att = q @ k.transpose(-1, -2) / (D // HEADS) ** 0.5
        att = att.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        return self.proj((att.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))


class Copyist(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.attn, self.norm = Attn(), nn.LayerNorm(D)
        self.head = nn.Linear(D, VOCAB)

    def forward(self, ids, pos):
        h = self.emb(ids)
        return self.head(self.norm(self.attn(h, pos)))


def main():
    torch.manual_seed(71)
    gen = torch.Generator().manual_seed(72)
    model = Copyist().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(300):
        ids = torch.randint(0, VOCAB, (32, WINDOW), generator=gen).to(device)
        start = torch.randint(2048, CTX - WINDOW, (32, 1), generator=gen)    # windows of a packed document
        pos = (start + torch.arange(WINDOW)).to(device)
        with torch.autocast(device_type=device, dtype=COMPUTE):
            logits = model(ids, pos)[:, 3:]
        loss = F.cross_entropy(logits.float().reshape(-1, VOCAB), ids[:, :-3].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 49:
            acc = (logits.argmax(-1) == ids[:, :-3]).float().mean().item()
            print(f"step {step + 1} loss {loss.item():.4f} acc {acc:.3f}")


main()
