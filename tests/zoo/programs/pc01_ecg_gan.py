"""GAN that synthesises single heartbeats (64 samples at 100 Hz) to augment a small arrhythmia set."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"

BATCH, LATENT, STEPS, LENGTH = 64, 16, 400, 64


def real_beats(n):
    """P wave, QRS complex and T wave with jitter in height, place and width, in mV."""
    t = torch.linspace(0, 0.64, LENGTH, device=device)
    waves = [(0.12, 0.15, 0.025), (0.23, -0.20, 0.008), (0.26, 1.20, 0.012), (0.29, -0.30, 0.010), (0.46, 0.35, 0.045)]
    beat = torch.zeros(n, LENGTH, device=device)
    shift = 0.015 * torch.randn(n, 1, device=device)
    for place, height, width in waves:
        h = height * (1 + 0.2 * torch.randn(n, 1, device=device))
        w = width * (1 + 0.1 * torch.randn(n, 1, device=device)).clamp(0.6, 1.4)
        beat = beat + h * torch.exp(-0.5 * ((t - place - shift) / w) ** 2)
    return beat + 0.02 * torch.randn_like(beat)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(LATENT, 128), nn.LeakyReLU(0.2),
            nn.Linear(128, 128), nn.LeakyReLU(0.2),
            nn.Linear(128, LENGTH),
        )

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(LENGTH, 128), nn.LeakyReLU(0.2),
            nn.Linear(128, 64), nn.LeakyReLU(0.2),
            nn.Linear(64, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def sliced_wasserstein(a, b, n_proj=128):
    d = F.normalize(torch.randn(a.shape[1], n_proj, device=a.device), dim=0)
    return ((a @ d).sort(0).values - (b @ d).sort(0).values).abs().mean().item()


gen, disc = Generator().to(device), Discriminator().to(device)
opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.5, 0.999))
scaler = torch.amp.GradScaler("cuda", growth_interval=50)
beats = real_beats(4096)

for step in range(STEPS):
    x = beats[torch.randint(len(beats), (BATCH,), device=device)]
    z = torch.randn(BATCH, LATENT, device=device)

    # discriminator
    opt_d.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        fake = gen(z)
        d_real, d_fake = disc(x), disc(fake.detach())
        loss_d = (F.binary_cross_entropy_with_logits(d_real, 0.9 * torch.ones_like(d_real))
                  + F.binary_cross_entropy_with_logits(d_fake, torch.zeros_like(d_fake)))
    scaler.scale(loss_d).backward()
    opt_d.step()

    # generator
    opt_g.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        d_fake = disc(gen(z))
        loss_g = F.binary_cross_entropy_with_logits(d_fake, torch.ones_like(d_fake))
    scaler.scale(loss_g).backward()
    scaler.step(opt_g)
    scaler.update()

    if step % 100 == 0:
        print(f"{step:4d}  D {loss_d.item():.3f}  G {loss_g.item():.3f}  scale {scaler.get_scale():.0f}")

gen.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    made = gen(torch.randn(4096, LATENT, device=device)).float()
print(f"metric {sliced_wasserstein(made, real_beats(4096)):.4f}")
