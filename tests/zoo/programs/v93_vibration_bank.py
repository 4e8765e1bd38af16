"""Bearing faults by the distance to a bank of healthy features (as PatchCore does for images)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
BAND, SPEEDS = 32, 4


def spectra(n, faulty=False):
    speed = torch.randint(0, SPEEDS, (n,))
    line = torch.arange(BAND)
    x = 10 + 3 * torch.exp(-((line[None] - 5 - 6 * speed[:, None]).float() ** 2) / 4) + 0.05 * torch.randn(n, BAND)
    if faulty:
        x = x + 0.1 * torch.sin(line * 1.3)
    return x.to(device), speed.to(device)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(BAND, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.speed = nn.Linear(64, SPEEDS)

    def forward(self, x):
        features = self.body(x)
        return features, self.speed(features)


class Bank:
    """The nearest healthy neighbour's distance is the alarm."""

    def fill(self, features):
        self.keys = features
        self.norms = (features**2).sum(1)

    def score(self, query):
        d2 = (query**2).sum(1, keepdim=True) + self.norms - 2 * (query @ self.keys.T)
        return d2.clamp(min=0).sqrt().amin(1)


def auroc(good, bad):
    return (bad[:, None] > good).float().mean().item() + 0.5 * (bad[:, None] == good).float().mean().item()


@torch.no_grad()
def evaluate(encoder):
    encoder.eval()
    bank = Bank()
    with torch.autocast("cuda", dtype=torch.float16):
        bank.fill(encoder(spectra(1000)[0])[0].float())
        good = bank.score(encoder(spectra(300)[0])[0].float())
        bad = bank.score(encoder(spectra(300, faulty=True)[0])[0].float())
    encoder.train()
    return auroc(good, bad)


encoder = Encoder().to(device)
optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda")
for epoch in range(4):
    for _ in range(10):
        x, speed = spectra(64)
        with torch.autocast("cuda", dtype=torch.float16):
            _, logits = encoder(x)
            loss = F.cross_entropy(logits, speed)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    result = evaluate(encoder)
    print(f"epoch {epoch} loss {loss.item():.3f} auroc {result:.3f}")
print(f"metric: {result:.4f}")
