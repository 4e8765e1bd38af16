"""Leaf disease from reflectance spectra; gradient penalty on the embedding keeps the classifier smooth."""
import torch
from torch import nn

torch.manual_seed(27)
device = "cuda" if torch.cuda.is_available() else "cpu"
BANDS, EMBED, BATCH, STEPS, PENALTY = 40, 32, 128, 120, 0.05

band = torch.linspace(0, 1, BANDS)
healthy_dip = torch.exp(-((band - 0.4) / 0.08) ** 2)
sick_dip = torch.exp(-((band - 0.6) / 0.10) ** 2)


def spectra(count):
    sick = torch.randint(2, (count,)).float()
    depth = 0.5 + torch.rand(count, 1)
    shape = torch.where(sick[:, None] > 0, 0.6 * healthy_dip + 0.5 * sick_dip, healthy_dip)
    reflectance = depth * shape + 0.5 * torch.randn(count, BANDS)
    return reflectance.to(device), sick.to(device)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(BANDS, EMBED)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(EMBED, 48), nn.SiLU(), nn.Linear(48, 1))


model = Classifier().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for step in range(STEPS):
    reflectance, sick = spectra(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        embedding = model.embed(reflectance)
        logit = model.head(embedding).squeeze(-1).float()
        loss = nn.functional.binary_cross_entropy_with_logits(logit, sick)
    (slope,) = torch.autograd.grad(logit.sum(), embedding, create_graph=True)
    norm = (slope.float().pow(2).sum(dim=1) + 1e-12).sqrt()
    penalty = (norm - 1).relu().pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss + PENALTY * penalty).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.4f} penalty {penalty.item():.4f} scale {scaler.get_scale()}")

reflectance, sick = spectra(16384)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    logit = model.head(model.embed(reflectance)).squeeze(-1)
print(f"scale {scaler.get_scale()}")
print(f"metric {((logit > 0).float() == sick).float().mean().item():.4f}")
