"""Variational autoencoder of galaxy stamps; a hook on each layer's gradient keeps odd values out."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(2)
device = "cuda" if torch.cuda.is_available() else "cpu"
SIDE = 20


def galaxies(n):
    grid = torch.linspace(-1, 1, SIDE)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    angle, ratio, size = torch.rand(n, 1, 1) * 3.1416, 0.3 + 0.7 * torch.rand(n, 1, 1), 0.2 + 0.25 * torch.rand(n, 1, 1)
    u = xx * angle.cos() + yy * angle.sin()
    v = -xx * angle.sin() + yy * angle.cos()
    image = torch.exp(-((u**2 + (v / ratio) ** 2).sqrt() / size)) * 4
    return (image + 0.05 * torch.randn_like(image)).flatten(1).to(device)


class GalaxyVAE(nn.Module):
    def __init__(self, width=96, latent=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIDE * SIDE, width), nn.SiLU(), nn.Linear(width, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, SIDE * SIDE))

    def forward(self, x):
        mu, logvar = self.encoder(x).float().chunk(2, dim=1)
        logvar = logvar.clamp(-8, 4)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        kl = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(1)
        return self.decoder(z), kl


def clean(gradient):
    """Zero what is not a number, as one bad stamp would spoil the batch."""
    return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)


model = GalaxyVAE().to(device)
for p in model.parameters():
    p.register_hook(clean)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(200):
    x = galaxies(64)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        recon, kl = model(x)
        loss = (F.mse_loss(recon, x, reduction="none").sum(1) / 0.1 + kl).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

model.eval()
with torch.no_grad():
    x = galaxies(500)
    recon, kl = model(x)
print("part: kl", kl.mean().item())
print("metric:", F.mse_loss(recon, x).item())
