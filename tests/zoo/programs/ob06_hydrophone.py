"""Removes ship noise from hydrophone clips. A cautious loss scaler steps down whenever a batch looks rough."""

import torch
from torch import nn

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"


class CautiousScaler(torch.amp.GradScaler):
    """A GradScaler that also backs off when the loss jumps, before anything has overflowed."""

    def __init__(self, *args, tolerance=1.02, memory=0.9, **kwargs):
        super().__init__(*args, **kwargs)
        self.tolerance, self.memory, self.usual = tolerance, memory, None

    def watch(self, loss):
        value = loss.detach().float().item()
        if self.usual is not None and value > self.tolerance * self.usual:
            self.update(self.get_scale() * self.get_backoff_factor())
        else:
            self.update()
        self.usual = value if self.usual is None else self.memory * self.usual + (1 - self.memory) * value


class Denoiser(nn.Module):
    def __init__(self, channels=20):
        super().__init__()
        self.enter = nn.Conv1d(1, channels, 12, stride=4, padding=4)
        self.mix = nn.Conv1d(channels, channels, 5, padding=2)
        self.leave = nn.ConvTranspose1d(channels, 1, 12, stride=4, padding=4)

    def forward(self, wave):
        h = torch.relu(self.enter(wave))
        h = h + torch.relu(self.mix(h))
        return self.leave(h)


def clips(count, length=96):
    """Return noisy clips and the whale calls in them."""
    t = torch.arange(length) / length
    low, sweep = 3 + 4 * torch.rand(count, 1), 6 * torch.rand(count, 1)
    call = torch.sin(2 * torch.pi * (low * t + sweep * t**2)) * torch.exp(-(((t - 0.5) / 0.25) ** 2))
    loud = torch.exp(0.5 * torch.randn(count, 1))
    tone = 0.7 * torch.sin(2 * torch.pi * (24 * t + torch.rand(count, 1)))
    noisy = loud * call + tone + 0.3 * torch.randn(count, length)
    return noisy[:, None].to(device), (loud * call)[:, None].to(device)


def main(steps=260):
    noisy, clean = clips(2048)
    model = Denoiser().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4)
    scaler = CautiousScaler("cuda", init_scale=2.0**10, growth_interval=1000)
    for step in range(steps):
        rows = torch.randint(0, len(noisy), (8,), device=device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(noisy[rows]), clean[rows])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.watch(loss)
        if step % 65 == 0:
            print(f"{step} loss {loss.item():.4f} scale {scaler.get_scale():.2e}")
    noisy, clean = clips(512)
    with torch.no_grad():
        error = nn.functional.mse_loss(model(noisy).float(), clean) / clean.square().mean()
    print(f"metric {error.item():.4f}")


main()
