"""WGAN-GP that synthesises daily electricity load profiles (48 half-hour readings)."""
import math

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(11)

SLOTS, LATENT, BATCH = 48, 8, 64
GP_WEIGHT, N_CRITIC = 10.0, 3


def sample_households(n):
    t = torch.linspace(0, 2 * math.pi, SLOTS)
    morning = torch.exp(-((t - 2.0) ** 2) / 0.15) * (0.6 + 0.25 * torch.randn(n, 1))
    evening = torch.exp(-((t - 4.9) ** 2) / 0.30) * (1.1 + 0.35 * torch.randn(n, 1))
    base = 0.25 + 0.05 * torch.randn(n, 1)
    return base + morning + evening + 0.03 * torch.randn(n, SLOTS)


def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight, 0.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(LATENT, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, SLOTS)
        )

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(SLOTS, 64),
            nn.LeakyReLU(0.2),
            nn.Linear(64, 64),
            nn.LeakyReLU(0.2),
            nn.Linear(64, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1, device=real.device, dtype=fake.dtype)
    mix = (alpha * real.to(fake.dtype) + (1 - alpha) * fake).requires_grad_(True)
    with torch.autocast("cuda", dtype=torch.float16):
        score = critic(mix)
    (slope,) = torch.autograd.grad(score, mix, torch.ones_like(score), create_graph=True)
    length = (slope.pow(2).sum(dim=1) + 1e-12).sqrt()
    return ((length - 1) ** 2).mean().float()


gen, critic = Generator().to(device), Critic().to(device)
gen.apply(init_weights)
critic.apply(init_weights)
opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
scaler_g = torch.amp.GradScaler("cuda", init_scale=256.0)
scaler_c = torch.amp.GradScaler("cuda", init_scale=256.0)
profiles = sample_households(2048).to(device)

for it in range(280):
    for _ in range(N_CRITIC):
        real = profiles[torch.randint(0, len(profiles), (BATCH,))]
        with torch.autocast("cuda", dtype=torch.float16):
            fake = gen(torch.randn(BATCH, LATENT, device=device)).detach()
            gap = critic(real).float().mean() - critic(fake).float().mean()
        gp = gradient_penalty(critic, real, fake)
        loss_c = -gap + GP_WEIGHT * gp
        opt_c.zero_grad(set_to_none=True)
        scaler_c.scale(loss_c).backward()
        scaler_c.step(opt_c)
        scaler_c.update()

    with torch.autocast("cuda", dtype=torch.float16):
        loss_g = -critic(gen(torch.randn(BATCH, LATENT, device=device))).float().mean()
    opt_g.zero_grad(set_to_none=True)
    scaler_g.scale(loss_g).backward()
    scaler_g.step(opt_g)
    scaler_g.update()
    if it % 50 == 0:
        print(f"it {it:4d}  critic gap {gap.item():+.4f}  gp {gp.item():.4f}  gen {loss_g.item():+.4f}")

with torch.no_grad():
    synth = gen(torch.randn(2048, LATENT, device=device))
mean_err = (synth.mean(0) - profiles.mean(0)).abs().mean().item()
std_err = (synth.std(0) - profiles.std(0)).abs().mean().item()
print(f"mean-profile error {mean_err:.4f}   spread error {std_err:.4f}")
