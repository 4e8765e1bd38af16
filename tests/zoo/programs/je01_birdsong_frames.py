"""Species from short birdsong frames, with a small dynamic loss scale of our own."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Config:
    species: int = 8
    bands: int = 32
    frames: int = 16
    steps: int = 130
    batch: int = 32
    lr: float = 0.08
    amp_dtype: torch.dtype = torch.float16
    init_scale: float = 1024.0
    growth_interval: int = 4


class LossScale:
    def __init__(self, cfg):
        self.scale = torch.tensor(cfg.init_scale, dtype=cfg.amp_dtype, device=device)
        self.interval = cfg.growth_interval
        self.good = 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = all(bool(torch.isfinite(g).all()) for g in grads)
        if finite:
            for g in grads:
                g.div_(self.scale)
            optimizer.step()
            self.good += 1
            if self.good % self.interval == 0:
                self.scale = self.scale * 2
        else:
            self.scale = self.scale * 0.5
            self.good = 0
        return finite


class SongNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.conv1 = nn.Conv1d(cfg.bands, 32, 3, padding=1)
        self.conv2 = nn.Conv1d(32, 32, 3, padding=1)
        self.out = nn.Linear(32, cfg.species)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.out(x.mean(-1))


def make_songs(rng, cfg, n):
    label = rng.integers(0, cfg.species, n)
    t = np.arange(cfg.frames)
    pitch = 4 + 3 * label[:, None] + 3 * np.sin(2 * np.pi * t[None] * (1 + label[:, None] % 3) / cfg.frames)
    pitch = pitch + rng.normal(0, 2.0, (n, 1))
    band = np.arange(cfg.bands)
    power = np.exp(-0.5 * (band[None, :, None] - pitch[:, None, :]) ** 2 / 2.0)
    power = power + 0.5 * rng.normal(size=power.shape)
    return torch.tensor(power, dtype=torch.float32), torch.tensor(label)


def main():
    cfg = Config()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = make_songs(rng, cfg, 1000)
    xt, yt = make_songs(rng, cfg, 800)
    model = SongNet(cfg).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    scaler = LossScale(cfg)
    for step in range(cfg.steps):
        pick = torch.randint(0, len(x), (cfg.batch,))
        xb, yb = x[pick].to(device), y[pick].to(device)
        with torch.autocast("cuda", dtype=cfg.amp_dtype):
            loss = F.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        scaler.backward(loss)
        scaler.step(optimizer)
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        accuracy = (model(xt.to(device)).argmax(-1).cpu() == yt).float().mean().item()
    print(f"metric {accuracy:.4f}")


if __name__ == "__main__":
    main()
