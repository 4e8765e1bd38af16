import torch
from torch import nn
import torch.nn.functional as F


class MaskedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, pad):
        B, T, D = x.shape
        q, k, v = (f(x).view(B, T, self.h, D // self.h).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = q @ k.transpose(-1, -2) / (D // self.h) ** 0.5
        causal = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        s = s.masked_fill(causal, float("-inf")).masked_fill(pad[:, None, None, :], torch.finfo(s.dtype).min)
        return self.o((s.softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(B, T, D))


class Encoder(nn.Module):
    def __init__(self, v=60, d=48):
        super().__init__()
        self.emb = nn.Embedding(v, d, padding_idx=0)
        self.a = nn.ModuleList([MaskedAttention(d, 4) for _ in range(2)])
        self.n = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])
        self.f = nn.ModuleList([nn.Sequential(nn.Linear(d, 96), nn.ReLU(), nn.Linear(96, d)) for _ in range(2)])
        self.out = nn.Linear(d, v)

    def forward(self, t):
        pad, x = t == 0, self.emb(t)
        for a, n, f in zip(self.a, self.n, self.f):
            x = x + a(n(x), pad)
            x = x + f(x)
        return self.out(x)


def data(n):
    s, k = torch.randint(1, 50, (n, 1)), torch.randint(1, 4, (n, 1))
    t = (s + k * torch.arange(17)) % 59 + 1
    t[torch.arange(17)[None] >= torch.randint(8, 18, (n, 1))] = 0
    return t[:, :-1], t[:, 1:]


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = Encoder().to(device)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**13)
for i in range(70):
    x, y = data(32)
    with torch.autocast(device.type, dtype=torch.float16):
        logits = net(x.to(device))
        loss = F.cross_entropy(logits.transpose(1, 2), y.to(device), ignore_index=0)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
print("loss", loss.item(), "scale", scaler.get_scale())
