"""Whale calls: few labelled clips, many without; a background thread gives the others the label of the nearest centroid."""
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(8)
SPECIES, BANDS, REFRESH = 6, 24, 10


class CallEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(BANDS, 64), nn.ReLU(), nn.Linear(64, 192))
        self.head = nn.Linear(192, SPECIES)

    def forward(self, clips):
        z = self.trunk(clips)
        return z, self.head(z)


centres = 8.0 * torch.randn(SPECIES, BANDS)


def clips(n):
    """Band levels in dB re 1 uPa."""
    species = torch.randint(0, SPECIES, (n,))
    level = 95.0 + centres[species] + 6.0 * torch.randn(n, BANDS) + 3.0 * torch.randn(n, 1)
    return level.to(device), species.to(device)


class PseudoLabeller:
    """Nearest-centroid labels, made off the training thread."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(max_workers=1)

    @staticmethod
    def assign(known, species, unknown):
        centroids = torch.stack([known[species == k].mean(0) for k in range(SPECIES)])
        cross = unknown @ centroids.t()
        distance = unknown.pow(2).sum(1, keepdim=True) + centroids.pow(2).sum(1) - 2 * cross
        return distance.argmin(dim=1)

    def submit(self, *features):
        return self.pool.submit(self.assign, *features)


def main(steps=120):
    model = CallEncoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scaler = torch.amp.GradScaler("cuda")
    labeller = PseudoLabeller()

    labelled, species = clips(18)
    species[:SPECIES] = torch.arange(SPECIES)
    labelled[:SPECIES] = 95.0 + centres.to(device) + 6.0 * torch.randn(SPECIES, BANDS).to(device)
    unlabelled, hidden = clips(256)
    pending = pseudo = None

    for step in range(steps):
        if step % REFRESH == 0:
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                z_known, _ = model(labelled)
                z_unknown, _ = model(unlabelled)
            pending = labeller.submit(z_known, species, z_unknown)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(labelled)[1], species)
            if pseudo is not None:
                pick = torch.randint(0, len(unlabelled), (64,), device=device)
                loss = loss + F.cross_entropy(model(unlabelled[pick])[1], pseudo[pick])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % REFRESH == REFRESH - 1:
            pseudo = pending.result()

    test, species = clips(1024)
    with torch.no_grad():
        accuracy = (model(test)[1].argmax(1) == species).float().mean()
    print(f"metric {accuracy.item():.4f}")


if __name__ == "__main__":
    main()
