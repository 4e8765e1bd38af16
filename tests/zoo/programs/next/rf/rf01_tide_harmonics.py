"""Tide gauge: fit one year of sea level from constituent harmonics with a small segmented network."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 5
MINUTES = 365 * 24 * 60
BATCH = 256
STEPS = 240
SPEEDS = [28.984104, 30.0, 28.439730, 15.041069, 13.943035, 57.968208]  # M2 S2 N2 K1 O1 M4, degrees per hour

device = "cuda" if torch.cuda.is_available() else "cpu"


class Harmonics(nn.Module):
    """Sine and cosine of each tidal constituent at a time in minutes since the start of the year."""

    def __init__(self):
        super().__init__()
        self.register_buffer("omega", torch.tensor(SPEEDS) / 60 * math.pi / 180)

    def forward(self, minutes):
        phase = minutes[:, None] * self.omega
        return torch.cat([torch.sin(phase), torch.cos(phase)], dim=1)


class Segment(torch.autograd.Function):
    """Activation checkpointing: keep only the input of a segment and run it again in backward."""

    @staticmethod
    def forward(ctx, run, x, *params):
        ctx.run, ctx.params, ctx.dtype = run, params, x.dtype
        ctx.save_for_backward(x.half())
        return run(x)

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        x = x.detach().to(ctx.dtype).requires_grad_()
        with torch.enable_grad(), torch.autocast("cuda", dtype=torch.float16):
            out = ctx.run(x)
        grads = torch.autograd.grad(out, (x, *ctx.params), grad_out)
        return (None, *grads)


class TideNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.segments = nn.ModuleList([
            nn.Sequential(Harmonics(), nn.Linear(2 * len(SPEEDS), width), nn.GELU()),
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU()),
        ])
        self.head = nn.Linear(width, 1)

    def forward(self, minutes):
        h = minutes
        for seg in self.segments:
            h = Segment.apply(seg, h, *seg.parameters()) if self.training else seg(h)
        return self.head(h).squeeze(1)


class LossScale:
    """Dynamic loss scale: halve on overflow, double after `window` good steps."""

    def __init__(self, scale=2.0**12, window=100):
        self.scale, self.window, self.good = scale, window, 0

    def step(self, optimizer, params):
        if not all(torch.isfinite(p.grad).all() for p in params):
            self.scale, self.good = max(self.scale / 2, 1.0), 0
            return False
        for p in params:
            p.grad.div_(self.scale)
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        self.good += 1
        if self.good % self.window == 0:
            self.scale = min(self.scale * 2, 2.0**16)
        return True


def sea_level(minutes):
    amp = torch.tensor([1.10, 0.42, 0.24, 0.31, 0.22, 0.08])
    lag = torch.tensor([0.4, 1.3, 2.2, 0.9, 2.8, 1.7])
    tide = (amp * torch.cos(minutes[:, None] * torch.tensor(SPEEDS) / 60 * math.pi / 180 - lag)).sum(1)
    return tide + 0.12 * tide.square() - 0.1  # shallow water


def main():
    torch.manual_seed(SEED)
    minutes = torch.rand(12000) * MINUTES
    level = sea_level(minutes) + 0.05 * torch.randn(12000)
    minutes, level = minutes.to(device), level.to(device)
    train, test = slice(0, 10000), slice(10000, None)

    net = TideNet().to(device)
    params = list(net.parameters())
    optimizer = torch.optim.Adam(params, lr=4e-3)
    loss_scale = LossScale()

    for step in range(STEPS):
        rows = torch.randint(0, 10000, (BATCH,), device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(net(minutes[train][rows]), level[train][rows])
        (loss * loss_scale.scale).backward()
        loss_scale.step(optimizer, params)

    net.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        error = F.mse_loss(net(minutes[test]), level[test]).sqrt()
    print(f"metric {error.item():.4f}")


if __name__ == "__main__":
    main()
