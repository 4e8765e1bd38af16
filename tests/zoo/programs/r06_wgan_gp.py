"""WGAN-GP on a ring."""
import torch
import torch.nn as nn

torch.manual_seed(5)
DEV = "cuda" if torch.cuda.is_available() else "cpu"
Z, H, B, GP = 4, 64, 64, 10.0
critic = nn.Sequential(nn.Linear(2, H), nn.SiLU(), nn.Linear(H, H), nn.SiLU(), nn.Linear(H, 1)).to(DEV)
gen = nn.Sequential(nn.Linear(Z, H), nn.ReLU(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, 2)).to(DEV)
oc = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.0, 0.9))
og = torch.optim.Adam(gen.parameters(), 1e-3, betas=(0.0, 0.9))
scaler = torch.amp.GradScaler(DEV, init_scale=2.0**10)


def ring(n):
    a = torch.rand(n, device=DEV) * 6.2832
    return torch.stack((a.cos(), a.sin()), 1)


def penalty(real, fake):
    u = torch.rand(len(real), 1, device=DEV)
    x = (u * real + (1 - u) * fake).requires_grad_(True)
    with torch.autocast(DEV, dtype=torch.float16):
        out = critic(x)
    (g,) = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


for it in range(60):
    for _ in range(2):
        real = ring(B)
        with torch.autocast(DEV, dtype=torch.float16):
            fake = gen(torch.randn(B, Z, device=DEV)).detach().float()
            wd = critic(fake).mean() - critic(real).mean()
        loss_c = wd + GP * penalty(real, fake)
        oc.zero_grad()
        scaler.scale(loss_c).backward()
        scaler.step(oc)
        scaler.update()
    with torch.autocast(DEV, dtype=torch.float16):
        loss_g = -critic(gen(torch.randn(B, Z, device=DEV))).mean()
    og.zero_grad()
    scaler.scale(loss_g).backward()
    scaler.step(og)
    scaler.update()
    if it % 20 == 0 or it == 59:
        print(it, float(wd), float(loss_c), scaler.get_scale())
