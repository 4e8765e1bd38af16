"""Rotary attention over irregular event logs: estimate the recency-weighted load at the query event."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
D, HEADS, EVENTS, MAX_TICK = 32, 1, 16, 8192


class Rotary(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)))
        self.cos = None
        self.sin = None

    def tables(self, length, dev):
        if self.cos is None or self.cos.shape[0] < length:
            t = torch.arange(length, device=dev).float()
            freqs = t[:, None] @ self.inv_freq[None, :]
            emb = torch.cat([freqs, freqs], dim=-1)
            self.cos, self.sin = emb.cos(), emb.sin()
        return self.cos, self.sin

    def forward(self, q, k, ticks):
        cos, sin = self.tables(MAX_TICK, q.device)
        c, s = cos[ticks][:, None], sin[ticks][:, None]
        return q * c + self.rotate(q) * s, k * c + self.rotate(k) * s

    @staticmethod
    def rotate(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([-b, a], dim=-1)


class EventModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, D)
        self.qkv = nn.Linear(D, 3 * D)
        self.rotary = Rotary(D // HEADS)
        self.out = nn.Linear(D, D)
        self.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU(), nn.Linear(D, 1))

    def forward(self, x, ticks):
        B, T, _ = x.shape
        h = self.inp(x)
        q, k, v = self.qkv(h).view(B, T, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q, k, ticks)
        att = torch.matmul(q[:, :, -1:], k.transpose(-1, -2)) / math.sqrt(D // HEADS)
        y = torch.matmul(att.softmax(-1), v).transpose(1, 2).reshape(B, D)
        return self.head(self.out(y)).squeeze(-1)


def batch(n, g):
    start = torch.randint(0, 7800, (n, 1), generator=g)
    ticks = start + torch.randint(1, 6, (n, EVENTS), generator=g).cumsum(1)
    x = torch.randn(n, EVENTS, 4, generator=g)
    w = torch.exp(-(ticks[:, -1:] - ticks).float() / 8.0)
    y = (w * x[..., 0]).sum(1) / w.sum(1)
    return x.to(device), ticks.to(device), (3 * y).to(device)


model = EventModel().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
scaler = torch.amp.GradScaler(device)
gen = torch.Generator().manual_seed(11)
for step in range(160):
    x, ticks, y = batch(64, gen)
    opt.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.float16):
        pred = model(x, ticks)
        loss = F.mse_loss(pred.float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    if step % 40 == 0:
        print(f"step {step:4d}  mse {loss.item():.4f}")

with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
    x, ticks, y = batch(1024, torch.Generator().manual_seed(99))
    print(f"held-out mse {F.mse_loss(model(x, ticks).float(), y).item():.4f}  (variance {y.var().item():.4f})")
