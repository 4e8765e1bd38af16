"""Sleep staging from two EEG channels (SI units: volts). The job is cut in two as on the shared queue:
the first allocation trains and saves, the second one loads and goes on.
"""

import io
import math
import pickle

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FS = 64
EPOCH = 256  # 4 s
STAGES = ["W", "N1", "N2", "N3", "REM"]
FIRST, TOTAL = 25, 110


def eeg(n, rng):
    """Mixtures of rhythms per stage; amplitudes of some ten microvolts."""
    t = np.arange(EPOCH) / FS
    stage = rng.integers(0, 5, n)
    #            delta theta alpha sigma beta
    power = np.array(
        [[8, 5, 22, 3, 8], [10, 14, 8, 4, 5], [14, 11, 5, 15, 4], [32, 24, 10, 30, 8], [4.5, 6.5, 4, 2, 2.5]], float
    )[stage]
    power = power * rng.uniform(0.75, 1.25, power.shape)
    bands = [(0.8, 3), (4, 7), (8.5, 11.5), (12, 15), (17, 25)]
    wave = np.zeros((n, 2, EPOCH))
    for b, (low, high) in enumerate(bands):
        for _ in range(2):
            f = rng.uniform(low, high, (n, 1, 1))
            lead = np.array([1.0, 0.8])[None, :, None]
            wave += lead * power[:, b, None, None] * np.sin(2 * math.pi * f * t + rng.uniform(0, 6.28, (n, 1, 1)))
    wave += 2 * rng.standard_normal(wave.shape)
    return torch.tensor(1e-6 * wave, dtype=torch.float32, device=device), torch.tensor(stage, device=device)


class Standardise(nn.Module):
    """Per-lead mean and variance, measured once before training."""

    def __init__(self, leads):
        super().__init__()
        self.register_buffer("mean", torch.zeros(leads))
        self.register_buffer("var", torch.ones(leads))

    def fit(self, x):
        self.mean.copy_(x.mean((0, 2)))
        self.var.copy_(x.var((0, 2)))

    def forward(self, x):
        x = (x - self.mean[:, None]) / (self.var[:, None] + 1e-15).sqrt()
        return x.clamp(-6, 6)  # movement artefacts


class Stager(nn.Module):
    def __init__(self, filters=40, width=48):
        super().__init__()
        self.scale = Standardise(2)
        self.filters = nn.Linear(2 * FS, filters)
        self.hidden = nn.Linear(2 * filters, width)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, len(STAGES))

    def forward(self, x):
        x = self.scale(x).unfold(2, FS, 16)  # (B, leads, windows, FS)
        h = F.relu(self.filters(x.permute(0, 2, 1, 3).flatten(2)))
        h = torch.cat([h.mean(1), h.amax(1)], 1)
        return self.out(self.drop(F.relu(self.hidden(h))))


def build():
    model = Stager().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
    return model, optimizer, schedule, torch.amp.GradScaler("cuda")


def save(model, optimizer, schedule, scaler, step):
    """Weights go to disk in half (quota!); what the optimizer knows stays as it is."""
    weights = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    file = io.BytesIO()
    np.savez(file, **{name: value.cpu().numpy() for name, value in weights.items()})
    rest = dict(optimizer=optimizer.state_dict(), schedule=schedule.state_dict(), scaler=scaler.state_dict())
    return file.getvalue(), pickle.dumps(dict(step=step, **rest))


def load(weights, rest):
    saved = pickle.loads(rest)
    model, optimizer, schedule, scaler = build()
    arrays = np.load(io.BytesIO(weights))
    model.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files})
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    scaler.load_state_dict(saved["scaler"])
    return (model, optimizer, schedule, scaler), saved["step"]


def allocation(model, optimizer, schedule, scaler, steps, rng):
    model.train()
    for step in steps:
        x, y = eeg(32, rng)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if step % 15 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")


def main():
    torch.manual_seed(31)
    rng = np.random.default_rng(31)
    parts = build()
    parts[0].scale.fit(eeg(128, rng)[0])
    allocation(*parts, range(FIRST), rng)
    weights, rest = save(*parts, FIRST)
    parts, start = load(weights, rest)
    print(f"resumed at {start}, weights take {len(weights) // 1024} KiB")
    allocation(*parts, range(start, TOTAL), rng)

    model = parts[0].eval()
    x, y = eeg(600, rng)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y).item()
        hits = (model(x).argmax(1) == y).float().mean().item()
    print(f"accuracy {hits:.3f}")
    print(f"final metric: {loss:.4f}")


if __name__ == "__main__":
    main()
