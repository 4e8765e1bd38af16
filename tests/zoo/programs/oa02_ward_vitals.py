"""Early-warning score from bedside vitals. Inputs are standardised by statistics gathered during training."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
AMP = torch.float16
CENTRE = torch.tensor([37.0, 120.0, 97.0, 16.0])  # temperature, systolic pressure, saturation, breaths
SPREAD = torch.tensor([0.6, 9.0, 1.4, 2.5])


class Standardise(nn.Module):
    """Keeps moving first and second moments and standardises by them."""

    def __init__(self, features, momentum=0.05):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("first", torch.zeros(features, dtype=AMP))
        self.register_buffer("second", torch.ones(features, dtype=AMP))
        self.register_buffer("ready", torch.tensor(False))

    @torch.no_grad()
    def observe(self, x):
        m1, m2 = x.mean(0), x.square().mean(0)
        if not self.ready:
            self.first.copy_(m1)
            self.second.copy_(m2)
            self.ready.fill_(True)
        self.first += self.momentum * (m1 - self.first)
        self.second += self.momentum * (m2 - self.second)

    def forward(self, x):
        if self.training:
            self.observe(x)
        variance = (self.second - self.first * self.first).clamp(min=1e-3)
        return (x - self.first) / variance.float().sqrt()


class WardNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Standardise(4)
        self.hidden = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.risk = nn.Linear(32, 1)

    def forward(self, x):
        return self.risk(self.hidden(self.scale(x))).squeeze(-1)


def admissions(n, generator):
    z = torch.randn(n, 4, generator=generator)
    score = 1.4 * z[:, 0] + z[:, 3] - 1.2 * z[:, 2] + 0.9 * z[:, 0] * z[:, 1]
    return (CENTRE + SPREAD * z).to(device), score.to(device)


def main():
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(3)
    model = WardNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(300):
        vitals, score = admissions(128, generator)
        with torch.autocast("cuda", dtype=AMP):
            loss = nn.functional.mse_loss(model(vitals).float(), score)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    model.eval()
    vitals, score = admissions(4000, generator)
    with torch.no_grad():
        rest = nn.functional.mse_loss(model(vitals), score) / score.var()
    print(f"metric {rest.item():.4f}")


if __name__ == "__main__":
    main()
