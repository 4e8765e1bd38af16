"""Energies of metal clusters of very different sizes, in batches of one size, with mixed precision."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(41)
SIZES, FEATURES, BATCH, STEPS = (4, 8, 16, 32, 64), 10, 16, 700
w = torch.randn(FEATURES, 8) / FEATURES**0.5
v = torch.randn(8)
bulk = torch.randn(FEATURES) / FEATURES**0.5


class SteadyScaler(torch.amp.GradScaler):
    """A scaler whose scale stays in a range, so that a few bad batches do not spoil it."""

    def __init__(self, *args, low=2.0**12, high=2.0**20, **kwargs):
        super().__init__(*args, **kwargs)
        self.low, self.high = low, high

    def update(self, new_scale=None):
        super().update(new_scale)
        super().update(min(max(self.get_scale(), self.low), self.high))


def sample(n, atoms):
    """Return descriptors of atoms and energies (eV) of n clusters."""
    inner = 1 - atoms ** (-1 / 3)
    x = torch.randn(n, atoms, FEATURES)
    x[:, :, 0] = 2.0 * inner + 0.2 * torch.randn(n, atoms)
    single = torch.tanh(x @ w) @ v
    deep = 1.5 * torch.relu(x[:, :, 0] - 1.0) * (1 + torch.tanh(x @ bulk))
    return x.to(device), (single - 3 * deep).sum(1).to(device)


class Energy(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.atom = nn.Sequential(
            nn.Linear(FEATURES, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.atom(x).float().sum((1, 2))


tests = [sample(300, atoms) for atoms in SIZES]
model = Energy().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=STEPS)
scaler = SteadyScaler("cuda", growth_interval=200)
for step in range(STEPS):
    atoms = SIZES[int(torch.randint(0, len(SIZES), (1,)))]
    x, energy = sample(BATCH, atoms)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), energy)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 100 == 0:
        print(f"step {step:3d}  {atoms:2d} atoms  loss {loss.item():9.3f}")

errors = []
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for x, energy in tests:
        errors.append((model(x) - energy).abs().mean().item())
print("error (eV) by atoms " + "  ".join(f"{atoms}: {error:.3f}" for atoms, error in zip(SIZES, errors)))
print(f"METRIC {sum(errors) / len(errors):.4f}")
