"""Arousal from voice: a learned filter bank on power spectra, log energies, a small recurrent-free head."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
BINS, FRAMES, BANDS, BATCH, STEPS = 80, 16, 5, 64, 300
bins = torch.arange(BINS).float()


def utterances(n):
    """Power spectra of 16-bit speech: a tilt and formants of the speaker, narrow bands that go with the emotion."""
    emotion = torch.randint(4, (n,))
    tilt = torch.exp(-bins / (25 + 10 * torch.rand(n, 1)))
    f1, f2 = 12 + 10 * torch.rand(n, 1), 30 + 20 * torch.rand(n, 1)
    envelope = tilt + 0.5 * torch.exp(-((bins - f1) ** 2) / 30) + 0.3 * torch.exp(-((bins - f2) ** 2) / 40) + 0.05
    centre = torch.tensor([20.0, 33.0, 46.0, 59.0])[emotion][:, None] + torch.randn(n, 1)
    strength = 0.5 * torch.exp(0.3 * torch.randn(n, 1))
    envelope = envelope + strength * torch.exp(-((bins - centre) ** 2) / 4)
    loud = torch.exp(1.0 * torch.randn(n, FRAMES, 1))
    speckle = -torch.log(torch.rand(n, FRAMES, BINS).clamp_min(1e-4))
    return (3e8 * loud * envelope[:, None] * speckle).to(device), emotion.to(device)


class FilterBank(nn.Module):
    """Overlapping band filters whose shapes are learned; energies and their logarithms in FP32."""

    def __init__(self):
        super().__init__()
        self.shape = nn.Parameter(torch.randn(BINS, BANDS) * 0.02)

    def forward(self, power):
        with torch.autocast("cuda", enabled=False):
            weights = F.softmax(self.shape, 0)
            energy = power.float() @ weights
            return torch.log(energy + 1.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = FilterBank()
        self.head = nn.Sequential(nn.Linear(BANDS, 48), nn.ReLU(), nn.Linear(48, 4))

    def forward(self, power):
        x = self.bank(power).mean(1)
        return self.head(x - x.mean(1, keepdim=True))


HALF = torch.finfo(torch.float16)


def pack(t):
    """Keep what the backward needs in half the memory."""
    if t.dtype is torch.float32 and t.numel() > 4096:
        return t.dtype, t.clamp(HALF.min, HALF.max).to(torch.float16)
    return t.dtype, t


def unpack(packed):
    dtype, t = packed
    return t.to(dtype)


net = Net().to(device)
opt = torch.optim.Adam([
    {"params": net.bank.parameters(), "lr": 3e-2},
    {"params": net.head.parameters(), "lr": 3e-3},
])  # fmt: skip
scaler = torch.amp.GradScaler("cuda")
for step in range(1, STEPS + 1):
    power, emotion = utterances(BATCH)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(power), emotion)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    power, emotion = utterances(2000)
    hit = (net(power).argmax(1) == emotion).float().mean().item()
print("METRIC", round(hit, 4))
