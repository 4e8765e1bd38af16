"""Self-calibration of a hull-mounted sonar array: element displacements from pings of known bearing."""
import math

import torch
from torch import nn

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
ELEMENTS, SPACING, WAVENUMBER = 32, 1.5, 2 * math.pi * 60000 / 1500


class Recompute(torch.autograd.Function):
    """Runs a block without keeping its activations; backward runs it again."""

    @staticmethod
    def forward(ctx, block, *tensors):
        ctx.block = block
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return block(*tensors)

    @staticmethod
    def backward(ctx, grad):
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.enable_grad(), torch.autocast("cuda", dtype=torch.float16):
            out = ctx.block(*inputs)
        torch.autograd.backward(out, grad.to(out.dtype))
        return (None, *(t.grad for t in inputs))


def field(positions, bearings):
    phase = WAVENUMBER * (positions @ bearings.t())
    return torch.stack([phase.cos(), phase.sin()], -1)


class Array(nn.Module):
    def __init__(self):
        super().__init__()
        line = torch.zeros(ELEMENTS, 2)
        line[:, 0] = 40.0 + torch.arange(ELEMENTS) * SPACING  # from the bow
        self.register_buffer("line", line)
        self.offset = nn.Parameter(torch.zeros(ELEMENTS, 2))
        self.gain = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, bearings, sea):
        with torch.autocast("cuda", enabled=False):
            wave = Recompute.apply(field, self.line + self.offset, bearings)
        return wave * self.gain(sea).view(1, -1, 1)


def bearings_of(n):
    angle = torch.rand(n, device=device) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], -1)


model = Array().to(device)
true_offset = torch.randn(ELEMENTS, 2, device=device).clamp(-2, 2) * 0.002
optimizer = torch.optim.Adam(
    [
        {"params": [model.offset], "lr": 1e-4},
        {"params": model.gain.parameters(), "lr": 1e-2},
    ]
)
scaler = torch.amp.GradScaler("cuda")

for step in range(200):
    bearings, sea = bearings_of(64), torch.randn(64, 3, device=device)
    with torch.no_grad():
        level = 1.0 + 0.3 * torch.tanh(sea[:, 0] - sea[:, 1])
        heard = field(model.line + true_offset, bearings) * level.view(1, -1, 1)
        heard += 0.05 * torch.randn_like(heard)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(bearings, sea), heard)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")

error = (model.offset.detach() - true_offset).square().mean().sqrt() * 1000
print(f"offset error {error.item():.2f} mm")
print(f"metric {error.item():.4f}")
