"""Recovers a fringe pattern from a noisy, half-masked interferogram with a small image network as the prior."""

import torch
from torch import nn

SIGMA = 2e-3  # of the camera, in units of full scale


class DynamicScale:
    """Doubles after a quiet stretch, halves on overflow."""

    def __init__(self, start=2.0**13, every=400, smallest=1.0):
        self.value, self.every, self.smallest = start, every, smallest
        self.quiet = 0

    def backward(self, loss):
        (loss * self.value).backward()

    def finish(self, optimizer):
        """Step if all gradients are finite; return whether it did."""
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not all(torch.isfinite(g).all() for g in grads):
            self.value = max(self.value / 2, self.smallest)
            self.quiet = 0
            return False
        for g in grads:
            g.div_(self.value)
        optimizer.step()
        self.quiet += 1
        if self.quiet % self.every == 0:
            self.value *= 2
        return True


class Prior(nn.Module):
    """Smooth waves of the pixel coordinates, then 1x1 convolutions."""

    def __init__(self, side, waves=24, width=32):
        super().__init__()
        axis = torch.linspace(-1, 1, side)
        where = torch.stack(torch.meshgrid(axis, axis, indexing="ij")).reshape(2, -1)
        angles = 5.0 * torch.randn(waves, 2) @ where
        self.register_buffer("seen", torch.cat([angles.sin(), angles.cos()]).reshape(1, 2 * waves, side, side))
        self.layers = nn.Sequential(
            nn.Conv2d(2 * waves, width, 1), nn.GELU(), nn.Conv2d(width, width, 1), nn.GELU(), nn.Conv2d(width, 1, 1)
        )

    def forward(self):
        return self.layers(self.seen)[0, 0]


def fringes(side):
    axis = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    a, b = 0.5 * torch.randn(2)
    return 0.5 + 0.4 * torch.cos(5 * (x + a) ** 2 + 4 * (y + b) ** 2 + 3 * x * y)


def main(side=24, steps=250):
    torch.manual_seed(41)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    truth = fringes(side).to(device)
    picture = truth + SIGMA * torch.randn(side, side, device=device)
    known = torch.rand(side, side, device=device) < 0.5
    model = Prior(side).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scale, stepped = DynamicScale(), 0
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            guess = model()
        misfit = ((guess.float() - picture) / SIGMA)[known]
        scale.backward(0.5 * misfit.square().sum())
        stepped += scale.finish(optimizer)
        if step % 50 == 0:
            print(f"{step:3d} chi2 per pixel {misfit.square().mean().item():.1f} scale {scale.value:g} steps {stepped}")
    with torch.no_grad():
        error = (model().float() - truth)[~known].square().mean().sqrt()
    print(f"metric {error.item():.4f}")


main()
