"""Coordinate network for a height map.  The feature block is recomputed in the backward pass by hand."""
import math
import torch
import torch.nn as nn

torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Recompute(torch.autograd.Function):
    """Runs a block without a graph; keeps only its input and builds the graph again when gradients come back."""

    @staticmethod
    def forward(ctx, block, keep, x, *params):
        ctx.block = block
        ctx.save_for_backward(x.to(keep))
        ctx.dtype = x.dtype
        return block(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = ctx.block(x.to(ctx.dtype))
        grads = torch.autograd.grad(y, list(ctx.block.parameters()), grad)
        return (None, None, None) + grads


class FourierBlock(nn.Module):
    def __init__(self, octaves=9, hidden=64):
        super().__init__()
        self.register_buffer("freq", math.pi * 2.0 ** torch.arange(octaves))
        self.body = nn.Sequential(nn.Linear(4 * octaves, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())

    def forward(self, xy):
        phase = (xy[:, :, None] * self.freq).flatten(1)
        return self.body(torch.cat([phase.sin(), phase.cos()], 1))


class HeightField(nn.Module):
    def __init__(self, keep=torch.bfloat16):
        super().__init__()
        self.block = FourierBlock()
        self.top = nn.Linear(64, 1)
        self.keep = keep

    def forward(self, xy):
        h = Recompute.apply(self.block, self.keep, xy, *self.block.parameters())
        return self.top(h).squeeze(1)


def terrain(xy):
    x, y = xy[:, 0], xy[:, 1]
    ridge = torch.sin(40 * x + 9 * y) * torch.cos(33 * y - 5 * x)
    valley = (2 * x - 1) ** 2 + 0.5 * torch.sin(5 * y)
    return 0.6 * ridge + 0.5 * valley + 0.2 * torch.sin(120 * x * y + 60 * y)


class Survey:
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.xy = torch.rand(n, 2, generator=g).to(device)
        self.z = terrain(self.xy)

    def sample(self, n, g):
        i = torch.randint(0, len(self.z), (n,), generator=g).to(device)
        return self.xy[i], self.z[i]


train, held = Survey(20000, 1), Survey(4000, 2)
field = HeightField().to(device)
optim = torch.optim.Adam(field.parameters(), lr=4e-3)
pick = torch.Generator().manual_seed(3)
for it in range(1, 201):
    xy, z = train.sample(512, pick)
    loss = (field(xy) - z).square().mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    if it % 40 == 0:
        with torch.no_grad():
            rmse = (field(held.xy) - held.z).square().mean().sqrt().item()
        print(f"iteration {it}: loss {loss.item():.4f}, held-out rmse {rmse:.4f}")
