"""Small modules with one thing each that low precision breaks, to be put together into cases."""

import torch
from torch import nn

WIDTH = 16


class Part(nn.Module):
    """A linear layer and, in the same forward, what goes wrong after it: its result is half whatever comes in."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x):
        return self.wrong(nn.functional.linear(x, self.weight))


class Energy(Part):
    """Divides by a root mean square whose squares exceed fp16."""

    def wrong(self, x):
        large = x * 400.0
        return large / (large * large).mean(-1, keepdim=True).sqrt()


class Centred(Part):
    """Adds and takes away an offset next to which fp16 has no room for the rest."""

    def wrong(self, x):
        return (x + 8192.0) - 8192.0


class Guarded(Part):
    """Guards a logarithm with an epsilon that is zero in fp16."""

    def wrong(self, x):
        return (x.relu() + 1e-8).log() / 9.0


class Counted(Part):
    """Turns positions into angles; half precision cannot tell large positions apart."""

    def wrong(self, x):
        at = torch.arange(len(x), device=x.device).to(x.dtype)[:, None] + 20000
        return x * (at * 0.3).sin()


class Loud(nn.Module):
    """Gives results above what fp16 holds."""

    def forward(self, x):
        return x * 3e5


class Quiet(nn.Module):
    """A linear layer that brings such results back; its input is cast, so it must run in FP32 as well."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 1e-6)

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


class Stage(nn.Module):
    """Loud and Quiet in one container, which has no operations of its own."""

    def __init__(self):
        super().__init__()
        self.loud, self.quiet = Loud(), Quiet()

    def forward(self, x):
        return self.quiet(self.loud(x))


class Gated(nn.Module):
    """A gated feed-forward whose product, in its own forward, is too large for what takes it in."""

    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), Quiet()

    def forward(self, x):
        return self.down(self.up(x) * 600.0 * self.gate(x) * 600.0)


class Block(nn.Module):
    """A layer with a residual branch around a part."""

    def __init__(self, part=None):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.norm = part or nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + self.norm(self.fc(x))


class Both(nn.Module):
    """Two parts side by side."""

    def __init__(self, left, right):
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.left, self.right = left, right
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.left(x) + self.right(x))


class Blocks(nn.Module):
    """Blocks in a list, which is no place that can run in FP32."""

    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class OwnLine(nn.Module):
    """The root squares by itself."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x):
        x = self.stem(x)
        x = (x @ self.mix) * 600.0
        square = x * x
        return self.head(x / square.mean(-1, keepdim=True).sqrt())


class LineThenModule(nn.Module):
    """The root makes large numbers on a line, and a module casts them."""

    def __init__(self):
        super().__init__()
        self.stem, self.quiet, self.head = nn.Linear(WIDTH, WIDTH), Quiet(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.stem(x).relu()
        x = x * 3e5
        return self.head(self.quiet(x))


class TwoLines(nn.Module):
    """The root makes large numbers on one line and casts them on another."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Parameter(torch.randn(WIDTH, WIDTH) * 1e-6)

    def forward(self, x):
        x = self.stem(x).relu()
        x = x * 3e5
        x = x @ self.mix
        return self.head(x)


class Mixed(nn.Module):
    """A module and a line of the root, each wrong by itself."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(WIDTH, WIDTH), Energy(), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x):
        x = self.norm(self.stem(x))
        x = (x @ self.mix + 8192.0) - 8192.0
        return self.head(x)


def chain(*parts: nn.Module) -> nn.Sequential:
    """Return the parts with a linear layer before each and one at the end."""
    layers = [layer for part in parts for layer in (nn.Linear(WIDTH, WIDTH), part)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))


def squared(model, batch):
    """Return a harmless loss."""
    x, y = batch
    return nn.functional.mse_loss(model(x).float(), y)


def loud_loss(model, batch):
    """Return a loss that squares large differences in fp16."""
    x, y = batch
    apart = (model(x) - y.half()) * 500.0
    return (apart * apart).mean().float() / 250000.0
