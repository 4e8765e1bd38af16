"""2-D ring GAN with the original minimax objective."""
import math
import torch
from torch import nn

torch.manual_seed(11)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, ZDIM = 128, 8


def ring(n):
    k = torch.randint(0, 8, (n,))
    ang = 2 * math.pi * k.float() / 8
    return torch.stack([3 * ang.cos(), 3 * ang.sin()], 1) + 0.05 * torch.randn(n, 2)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(ZDIM, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2))
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return torch.sigmoid(self.out(self.body(x)))


G, D = Generator().to(device), Critic().to(device)
with torch.no_grad():
    D.out.bias.fill_(11.0)
    D.out.weight.mul_(6.0)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.999))
scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
EPS = 1e-8

hist = []
for it in range(60):
    real = ring(BATCH).to(device)
    z = torch.randn(BATCH, ZDIM, device=device)

    with torch.autocast(device.type, dtype=torch.float16):
        fake = G(z)
        p_fake = D(fake)
        g_loss = torch.log(1 - p_fake + EPS).mean()
    opt_g.zero_grad(set_to_none=True)
    scaler.scale(g_loss).backward()
    scaler.step(opt_g)

    with torch.autocast(device.type, dtype=torch.float16):
        p_real = D(real)
        p_fake = D(fake.detach())
        d_loss = -(torch.log(p_real + EPS).mean() + torch.log(1 - p_fake + EPS).mean())
    opt_d.zero_grad(set_to_none=True)
    scaler.scale(d_loss).backward()
    scaler.step(opt_d)
    scaler.update()
    hist.append((g_loss.item(), d_loss.item()))
    if it % 15 == 0:
        print(f"{it:3d} g {hist[-1][0]:.4f} d {hist[-1][1]:.4f}")
print("last", hist[-1])
