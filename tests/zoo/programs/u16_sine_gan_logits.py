"""Sequence GAN on short sine snippets: BCE on raw scores, one scaler, two optimizers."""
import torch
from torch import nn

torch.manual_seed(101)
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Wave(nn.Module):
    def __init__(self, n=32):
        super().__init__()
        self.up = nn.Sequential(nn.Linear(6, 64), nn.LeakyReLU(0.1), nn.Linear(64, n), nn.Tanh())

    def forward(self, z):
        return self.up(z)


class Judge(nn.Module):
    def __init__(self, n=32):
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 5, stride=2, padding=2)
        self.out = nn.Linear(16 * n // 2, 1)
        nn.init.constant_(self.out.bias, 10.0)

    def forward(self, w):
        h = nn.functional.leaky_relu(self.conv(w.unsqueeze(1)), 0.1)
        return self.out(h.flatten(1))


def real(n):
    p = torch.rand(n, 1) * 6.283
    return torch.sin(p + torch.linspace(0, 12.56, 32)).to(dev)


g, d = Wave().to(dev), Judge().to(dev)
go, do = (torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.99)) for m in (g, d))
scaler = torch.amp.GradScaler(dev.type, init_scale=2048.0)
crit = nn.BCEWithLogitsLoss()

for i in range(40):
    x = real(64)
    with torch.autocast(dev.type, dtype=torch.float16):
        fake = g(torch.randn(64, 6, device=dev))
        sr, sf = d(x), d(fake.detach())
        dl = crit(sr, torch.full_like(sr, 0.9)) + crit(sf, torch.zeros_like(sf))
    do.zero_grad(set_to_none=True)
    scaler.scale(dl).backward()
    scaler.step(do)

    with torch.autocast(dev.type, dtype=torch.float16):
        s = d(fake)
        gl = crit(s, torch.ones_like(s))
    go.zero_grad(set_to_none=True)
    scaler.scale(gl).backward()
    scaler.step(go)
    scaler.update()
    if i % 10 == 9:
        print(i, round(dl.item(), 4), round(gl.item(), 4))
