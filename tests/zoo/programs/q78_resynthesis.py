"""Resynthesis of recorded notes: pitch, partials and the instrument's body are fitted; activations are kept packed."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
NOTES, SAMPLES, RATE, PARTIALS, TAPS, STEPS = 96, 1600, 8000, 4, 16, 250

t = torch.arange(SAMPLES, device=device) / RATE
k = torch.arange(1, PARTIALS + 1, device=device).float()


class Player(nn.Module):
    """Each note has its own pitch, decay, strengths and phases; all notes sound through the same body."""

    def __init__(self, pitch):
        super().__init__()
        self.register_buffer("pitch", pitch)
        self.detune = nn.Parameter(torch.zeros(NOTES, 1))
        self.decay = nn.Parameter(torch.full((NOTES, 1), 8.0).log())
        self.strength = nn.Parameter(0.5 / torch.arange(1, PARTIALS + 1).float().repeat(NOTES, 1))
        self.phase = nn.Parameter(torch.zeros(NOTES, PARTIALS))
        body = torch.zeros(TAPS)
        body[0] = 1
        self.body = nn.Parameter(body)

    def forward(self):
        hertz = (self.pitch + self.detune) * k
        angle = 2 * math.pi * hertz[..., None] * t + self.phase[..., None]
        partials = self.strength[..., None] * torch.sin(angle)
        dry = partials.sum(1) * torch.exp(-self.decay.exp() * t)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            wet = F.pad(dry, (TAPS - 1, 0)).unfold(1, TAPS, 1) @ self.body.flip(0)[:, None]
        return wet.squeeze(-1).float()


def pack(x):
    return x.dtype, x.to(torch.bfloat16) if x.is_floating_point() else x


def unpack(kept):
    dtype, x = kept
    return x.to(dtype)


# The recordings, and what a pitch tracker said of them.
true_pitch = 440 * 2 ** (torch.randint(0, 13, (NOTES, 1)) / 12) * (1 + 0.002 * torch.randn(NOTES, 1))
teacher = Player(true_pitch).to(device)
with torch.no_grad():
    teacher.strength.mul_(0.4 + 1.2 * torch.rand(NOTES, PARTIALS).to(device))
    teacher.phase.add_(0.8 * torch.randn(NOTES, PARTIALS).to(device))
    teacher.decay.add_(0.3 * torch.randn(NOTES, 1).to(device))
    teacher.body.add_(0.3 * torch.randn(TAPS).to(device) * torch.exp(-torch.arange(TAPS) / 4.0).to(device))
    clean = teacher()
recorded = clean + 0.02 * torch.randn(NOTES, SAMPLES).to(device)

player = Player(true_pitch + 0.5 * torch.randn(NOTES, 1)).to(device)
opt = torch.optim.Adam(player.parameters(), lr=2e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
for step in range(STEPS):
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = F.mse_loss(player(), recorded)
    opt.zero_grad()
    loss.backward()
    opt.step()
    schedule.step()
    if step % 50 == 49:
        print(f"step {step + 1}  loss {loss.item():.5f}")

with torch.no_grad():
    error = (player() - clean).pow(2).mean() / clean.pow(2).mean()
print(f"METRIC {error.item():.5f}")
