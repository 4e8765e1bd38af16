# 2-d GAN on a ring of Gaussians, quick loss-scale growth to be back soon after an overflow.
import math, torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(59)
device = "cuda" if torch.cuda.is_available() else "cpu"
mlp = lambda a, b: nn.Sequential(nn.Linear(a, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, b))
G, D = mlp(8, 2).to(device), mlp(2, 1).to(device)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.9))
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 14, growth_interval=1)


def real(n):
    k = torch.randint(8, (n,)) * math.pi / 4
    return 2 * torch.stack([k.cos(), k.sin()], 1) + 0.05 * torch.randn(n, 2)


for it in range(300):
    x = real(128).to(device)
    z = torch.randn(128, 8, device=device)
    with torch.autocast(device, dtype=torch.float16):
        fake = G(z)
        loss_d = F.softplus(-D(x)).sum() + F.softplus(D(fake.detach())).sum()
    opt_d.zero_grad()
    scaler.scale(loss_d).backward()
    scaler.step(opt_d)

    with torch.autocast(device, dtype=torch.float16):
        loss_g = F.softplus(-D(G(z))).mean()
    opt_g.zero_grad()
    scaler.scale(loss_g).backward()
    scaler.step(opt_g)
    scaler.update()
    if it % 60 == 0 or it == 299:
        print(f"{it} D {loss_d.item() / 256:.4f} G {loss_g.item():.4f} scale {scaler.get_scale():.0f}")
