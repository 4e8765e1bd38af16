"""Drone landing: kind of ground and distance to the pad from a depth profile, each loss with a loss scale of its own."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

N_RAYS, N_GROUNDS, BATCH, STEPS = 32, 4, 64, 350


def fly(n):
    """Depth along a fan of rays over grass, gravel, water or roof, with the pad somewhere below."""
    ground = torch.randint(0, N_GROUNDS, (n,))
    rays = torch.linspace(-1, 1, N_RAYS)
    height = 2 + 6 * torch.rand(n, 1)
    place = torch.rand(n, 1) * 1.4 - 0.7
    rough = torch.tensor([0.25, 0.5, 0.05, 0.12])[ground][:, None]
    depth = height * (1 + 0.4 * rays**2) + rough * torch.randn(n, N_RAYS)
    depth = depth - 1.5 * torch.exp(-((rays - place) ** 2) / 0.02)
    offset = torch.cat([height * place, height], 1)  # metres
    return (depth / 5 - 1).to(device), ground.to(device), offset.to(device)


class LossScaler:
    def __init__(self, scale=2.0**16, window=1000):
        self.scale, self.window, self.clean = scale, window, 0

    def backward(self, loss, parameters, **kwargs):
        (loss * self.scale).backward(**kwargs)
        overflow = not all(torch.isfinite(p.grad).all() for p in parameters if p.grad is not None)
        return overflow

    def update(self, overflow):
        if overflow:
            self.scale, self.clean = self.scale / 2, 0
        else:
            self.clean += 1
            if self.clean % self.window == 0:
                self.scale *= 2


class LandingNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(N_RAYS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.ground = nn.Linear(width, N_GROUNDS)
        self.offset = nn.Linear(width, 2)

    def forward(self, depth):
        features = self.trunk(depth)
        return self.ground(features), self.offset(features)


model = LandingNet().to(device)
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=2e-3, momentum=0.9)
scalers = [LossScaler(), LossScaler()]  # ground, offset

for step in range(STEPS):
    depth, ground, offset = fly(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        ground_logits, offset_hat = model(depth)
        ground_loss = F.cross_entropy(ground_logits, ground)
        offset_loss = 10 * F.mse_loss(offset_hat, offset)
    optimizer.zero_grad(set_to_none=True)
    overflows = [
        scalers[0].backward(ground_loss, parameters, retain_graph=True),
        scalers[1].backward(offset_loss, parameters),
    ]
    if not any(overflows):
        for p in parameters:
            p.grad.div_(scalers[0].scale)
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
    for scaler, overflow in zip(scalers, overflows):
        scaler.update(overflow)
    if step % 70 == 0:
        print(f"step {step} ground {ground_loss.item():.3f} offset {offset_loss.item():.4f}")

depth, ground, offset = fly(4000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    _, offset_hat = model(depth)
error = (offset_hat.float() - offset).abs().mean()
print(f"metric {error.item():.5f}")
