"""Beams in a test rig: one head names the support, a small one gives the bending at the tip in metres.

The bending head sits on detached features and has its own optimizer, so that it can be refitted for another rig.
"""

import torch
import torch.nn.functional as F
from torch import nn

GAUGES, KINDS, STEPS, BATCH = 12, 4, 220, 192
FULL_SCALE = 2e-2  # metres

torch.manual_seed(19)
device = "cuda" if torch.cuda.is_available() else "cpu"

shape = torch.randn(KINDS, GAUGES)
stiff = torch.rand(GAUGES) + 0.5


def beams(n):
    """Strain peaks of n beams, the kind of support and the bending (m)."""
    kind = torch.randint(KINDS, (n,))
    load = 0.4 + torch.rand(n, 1)
    strain = shape[kind] * 0.8 + load * stiff * 1.5 + 0.25 * torch.randn(n, GAUGES)
    bending = 1.4e-2 * load.squeeze(1) ** 1.5 * (0.7 + 0.12 * kind)
    return strain.to(device), kind.to(device), bending.to(device)


class Rig(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(GAUGES, 64), nn.GELU(), nn.Linear(64, 48), nn.GELU())
        self.kind = nn.Linear(48, KINDS)
        self.bending = nn.Sequential(nn.Linear(48 + GAUGES, 48), nn.GELU(), nn.Linear(48, 1))

    def forward(self, strain):
        features = self.trunk(strain)
        inputs = torch.cat([features.detach().float(), strain], 1)
        metres = self.bending(inputs).float().squeeze(1) * FULL_SCALE
        return self.kind(features), metres


model = Rig().to(device)
backbone = [*model.trunk.parameters(), *model.kind.parameters()]
opt_kind = torch.optim.Adam(backbone, lr=3e-3)
opt_bending = torch.optim.Adam(model.bending.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**13)

for step in range(STEPS):
    strain, kind, bending = beams(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        logits, metres = model(strain)
        kind_loss = F.cross_entropy(logits, kind)
        bending_loss = F.mse_loss(metres, bending)

    opt_kind.zero_grad(set_to_none=True)
    opt_bending.zero_grad(set_to_none=True)
    scaler.scale(kind_loss).backward()
    scaler.step(opt_kind)

    # the little head has its own optimizer and shares the scaler
    scaler.scale(bending_loss).backward()
    scaler.step(opt_bending)
    scaler.update()

    if step % 65 == 0:
        rms = bending_loss.sqrt().item() * 1000
        print(f"step {step} kind {kind_loss.item():.3f} bending {rms:.3f} mm")

model.eval()
with torch.no_grad():
    strain, kind, bending = beams(5000)
    logits, metres = model(strain)
    accuracy = (logits.argmax(1) == kind).float().mean().item()
    rms = F.mse_loss(metres, bending).sqrt().item() * 1000
print(f"accuracy of the kind {accuracy:.3f}")
print(f"metric {rms:.4f}")
