"""Single-channel speech enhancement on magnitude spectrograms.

A gain for each time-frequency bin is predicted, and a small correction that fills in what a gain cannot. The gain
starts near one, so that the untrained system passes its input through.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
BINS, FRAMES = 32, 32


def speech(n):
    """Harmonic stacks with formants and a syllabic envelope."""
    k = torch.arange(BINS).float()[None, :, None]
    t = torch.arange(FRAMES).float()[None, None, :]
    f0 = 3 + 2 * torch.rand(n, 1, 1) + 0.3 * torch.sin(0.2 * t + 6.28 * torch.rand(n, 1, 1))
    comb = torch.cos(torch.pi * k / f0).pow(2).pow(4)
    formant = 0.05
    for low, high, width in ((3, 9, 2.0), (10, 18, 3.0), (19, 28, 3.5)):
        center = low + (high - low) * torch.rand(n, 1, 1) + 1.5 * torch.sin(0.3 * t + 6.28 * torch.rand(n, 1, 1))
        formant = formant + torch.exp(-0.5 * ((k - center) / width) ** 2)
    syllables = torch.sigmoid(6 * torch.sin(0.5 * t + 6.28 * torch.rand(n, 1, 1)))
    return comb * formant * syllables


def noise(n):
    color = torch.exp(-torch.rand(n, 1, 1) * torch.arange(BINS)[None, :, None] / 10)
    burst = 0.6 + 0.8 * torch.rand(n, 1, FRAMES)
    rayleigh = torch.randn(n, BINS, FRAMES, 2).pow(2).sum(-1).sqrt()
    return 0.35 * color * burst * rayleigh


def batch(n):
    level = torch.exp(1.5 * torch.randn(n, 1, 1))
    clean = speech(n)
    return level * (clean + noise(n)), level * clean, level


class Enhancer(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.inp = nn.Conv1d(BINS, hidden, 3, padding=1)
        self.mid = nn.Conv1d(hidden, hidden, 3, padding=2, dilation=2)
        self.gain = nn.Conv1d(hidden, BINS, 1)
        self.fill = nn.Conv1d(hidden, BINS, 1)
        nn.init.zeros_(self.gain.weight)
        nn.init.constant_(self.gain.bias, 9.0)

    def forward(self, noisy):
        level = noisy.mean(dim=(1, 2), keepdim=True)
        h = F.relu(self.inp(torch.log(noisy / level + 1e-3)))
        h = h + F.relu(self.mid(h))
        gain = torch.sigmoid(self.gain(h))
        fill = 0.1 * torch.tanh(self.fill(h))
        return gain * noisy + level * fill, gain


def snr(estimate, clean):
    error = (estimate - clean).pow(2).sum(dim=(1, 2))
    return 10 * torch.log10(clean.pow(2).sum(dim=(1, 2)) / error)


@torch.no_grad()
def evaluate(model, data):
    noisy, clean, _ = (v.to(device) for v in data)
    with torch.autocast("cuda", dtype=torch.float16):
        estimate, gain = model(noisy)
    return snr(estimate.float(), clean).mean().item(), gain.float().mean().item()


def train(steps=260, size=8, lr=1e-2):
    torch.manual_seed(3)
    model = Enhancer().to(device)
    test = batch(150)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1.0 if i < 180 else 0.2)
    scaler = torch.amp.GradScaler("cuda")
    before = snr(test[0], test[1]).mean().item()
    print(f"SNR of the input {before:.2f} dB, of the untrained output {evaluate(model, test)[0]:.2f} dB")

    running = None
    for step in range(1, steps + 1):
        noisy, clean, level = (v.to(device) for v in batch(size))
        with torch.autocast("cuda", dtype=torch.float16):
            estimate, _ = model(noisy)
            loss = F.mse_loss(estimate / level, clean / level)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        running = loss.item() if running is None else 0.97 * running + 0.03 * loss.item()
        if step % 130 == 0:
            value, gain = evaluate(model, test)
            print(f"step {step}: loss {running:.4f}, SNR {value:.2f} dB, mean gain {gain:.3f}")
    return model, test


if __name__ == "__main__":
    model, test = train()
    print(f"final metric: {evaluate(model, test)[0]:.3f}")
