"""Energy of a double pendulum from a short track: additive coupling layers that are inverted in the backward pass."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(23)
device = "cuda" if torch.cuda.is_available() else "cpu"
FRAMES, WIDTH, DEPTH, STEPS = 6, 48, 4, 100


class Coupled(torch.autograd.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1); only the last pair is kept."""

    @staticmethod
    def forward(ctx, x1, x2, layers, *weights):
        for f, g in layers:
            x1 = x1 + f(x2)
            x2 = x2 + g(x1)
        ctx.layers, ctx.weights = layers, weights
        ctx.save_for_backward(x1, x2)
        return x1, x2

    @staticmethod
    def backward(ctx, d1, d2):
        y1, y2 = ctx.saved_tensors
        grads = {}
        for f, g in reversed(ctx.layers):
            with torch.enable_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                y1 = y1.detach().requires_grad_()
                out = g(y1)
            back = torch.autograd.grad(out, [y1, *g.parameters()], d2.to(out.dtype))
            d1 = d1 + back[0]
            x2 = y2 - out.detach()
            grads.update({id(p): v for p, v in zip(g.parameters(), back[1:])})
            with torch.enable_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                x2 = x2.detach().requires_grad_()
                out = f(x2)
            back = torch.autograd.grad(out, [x2, *f.parameters()], d1.to(out.dtype))
            d2 = d2 + back[0]
            y1, y2 = y1.detach() - out.detach(), x2.detach()
            grads.update({id(p): v for p, v in zip(f.parameters(), back[1:])})
        return d1, d2, None, *[grads[id(w)] for w in ctx.weights]


def branch():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))


class EnergyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4 * FRAMES, 2 * WIDTH)
        self.layers = nn.ModuleList(nn.ModuleList([branch(), branch()]) for _ in range(DEPTH))
        self.head = nn.Linear(2 * WIDTH, 1)

    def forward(self, track):
        x1, x2 = self.stem(track).float().chunk(2, dim=1)
        x1, x2 = Coupled.apply(x1, x2, list(self.layers), *self.layers.parameters())
        return self.head(torch.cat([x1, x2], 1)).squeeze(1)


def tracks(n):
    """A few frames of both arms (angles and speeds, noisy) and the energy of the first frame."""
    a, b = 1.5 * torch.randn(n, 1), 1.5 * torch.randn(n, 1)
    va, vb = torch.randn(n, 1), torch.randn(n, 1)
    energy = va**2 + 0.5 * vb**2 + va * vb * torch.cos(a - b) - 2 * torch.cos(a) - torch.cos(b)
    t = 0.05 * torch.arange(FRAMES)
    frames = torch.cat([a + va * t, b + vb * t, va - torch.sin(a) * t, vb - torch.sin(b) * t], 1)
    return (frames + 0.02 * torch.randn_like(frames)).to(device), energy.squeeze(1).to(device)


model = EnergyNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for step in range(STEPS):
    track, energy = tracks(256)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        predicted = model(track)
    loss = F.smooth_l1_loss(predicted.float(), energy)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    schedule.step()

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    track, energy = tracks(8000)
    error = (model(track).float() - energy).abs().mean().item()
print(f"metric {error:.4f}")
