"""Contrastive features of bird-call spectra with a queue of keys and a momentum encoder; scored by retrieval."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(37)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.float16
SPECIES, BINS, DIM, QUEUE, BATCH, STEPS = 40, 48, 24, 512, 64, 200

bins = torch.arange(BINS).float()
centres = torch.rand(SPECIES, 3) * BINS
widths = torch.empty(SPECIES, 3).uniform_(1.0, 3.0)
levels = torch.empty(SPECIES, 3).uniform_(0.5, 1.5)


def calls(species):
    """Power spectrum of one call: three formants, shifted and scaled a little, in noise."""
    shift = 0.8 * torch.randn(len(species), 1, 1)
    peaks = levels[species][..., None] * torch.exp(
        -0.5 * ((bins - centres[species][..., None] - shift) / widths[species][..., None]) ** 2
    )
    gain = torch.empty(len(species), 1).uniform_(0.7, 1.4)
    return (gain * peaks.sum(1) + 0.3 * torch.randn(len(species), BINS)).to(device)


class Encoder(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(BINS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, DIM))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class KeyQueue(nn.Module):
    """Ring buffer of past keys."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(QUEUE, DIM), dim=1).to(amp_dtype))
        self.register_buffer("head", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, keys):
        slots = (self.head + torch.arange(len(keys), device=keys.device)) % QUEUE
        self.keys[slots] = keys.to(self.keys.dtype)
        self.head.copy_((self.head + len(keys)) % QUEUE)


encoder = Encoder().to(device)
momentum_encoder = copy.deepcopy(encoder).requires_grad_(False)
queue = KeyQueue().to(device)
optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)

for step in range(STEPS):
    species = torch.randint(0, SPECIES, (BATCH,))
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        query = encoder(calls(species))
        with torch.no_grad():
            key = momentum_encoder(calls(species))
        positive = (query * key).sum(1, keepdim=True)
        negative = query @ queue.keys.T
        logits = torch.cat([positive, negative], dim=1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long, device=device))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for slow, p in zip(momentum_encoder.parameters(), encoder.parameters()):
            slow.lerp_(p, 0.03)
    queue.push(key)
    if step % 50 == 49:
        print(f"step {step + 1} loss {loss.item():.4f} scale {scaler.get_scale():g}")

gallery_species = torch.arange(SPECIES).repeat(4)
probe_species = torch.randint(0, SPECIES, (4096,))
with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
    gallery, probe = encoder(calls(gallery_species)), encoder(calls(probe_species))
    nearest = (probe @ gallery.T).argmax(1).cpu()
print(f"metric {(gallery_species[nearest] == probe_species).float().mean().item():.4f}")
