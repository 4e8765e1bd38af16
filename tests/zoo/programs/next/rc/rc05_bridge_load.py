"""Bridge monitoring: one head names the kind of vehicle, a small one gives the deflection at midspan in metres.

The deflection head sits on detached features and has its own optimizer, so that it can be recalibrated on site.
"""

import torch
import torch.nn.functional as F
from torch import nn

GAUGES, KINDS, STEPS, BATCH = 16, 5, 260, 256
FULL_SCALE = 3e-3  # metres

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"

shape = torch.randn(KINDS, GAUGES)
stiff = torch.rand(GAUGES) + 0.5


def crossings(n):
    """Strain peaks of n crossings, the vehicle's kind and the deflection (m)."""
    kind = torch.randint(KINDS, (n,))
    mass = 0.4 + torch.rand(n, 1)
    strain = shape[kind] * 0.8 + mass * stiff * 1.5 + 0.25 * torch.randn(n, GAUGES)
    deflection = 2.2e-3 * mass.squeeze(1) ** 1.5 * (0.7 + 0.12 * kind)
    return strain.to(device), kind.to(device), deflection.to(device)


class Monitor(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(GAUGES, 64), nn.GELU(), nn.Linear(64, 48), nn.GELU())
        self.kind = nn.Linear(48, KINDS)
        self.deflection = nn.Sequential(nn.Linear(48 + GAUGES, 48), nn.GELU(), nn.Linear(48, 1))

    def forward(self, strain):
        features = self.trunk(strain)
        inputs = torch.cat([features.detach().float(), strain], 1)
        metres = self.deflection(inputs).float().squeeze(1) * FULL_SCALE
        return self.kind(features), metres


model = Monitor().to(device)
backbone = [*model.trunk.parameters(), *model.kind.parameters()]
opt_kind = torch.optim.Adam(backbone, lr=3e-3)
opt_deflection = torch.optim.Adam(model.deflection.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**13)

for step in range(STEPS):
    strain, kind, deflection = crossings(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        logits, metres = model(strain)
        kind_loss = F.cross_entropy(logits, kind)
        deflection_loss = F.mse_loss(metres, deflection)

    opt_kind.zero_grad(set_to_none=True)
    opt_deflection.zero_grad(set_to_none=True)
    scaler.scale(kind_loss).backward()
    scaler.step(opt_kind)

    # the little head is trained apart from the backbone
    deflection_loss.backward()
    opt_deflection.step()
    scaler.update()

    if step % 65 == 0:
        rms = deflection_loss.sqrt().item() * 1000
        print(f"step {step} kind {kind_loss.item():.3f} deflection {rms:.3f} mm")

model.eval()
with torch.no_grad():
    strain, kind, deflection = crossings(5000)
    logits, metres = model(strain)
    accuracy = (logits.argmax(1) == kind).float().mean().item()
    rms = F.mse_loss(metres, deflection).sqrt().item() * 1000
print(f"accuracy of the kind {accuracy:.3f}")
print(f"metric {rms:.4f}")
