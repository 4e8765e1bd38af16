"""Online handwriting: the letter that a pen trajectory shows, with a loss scale of our own from before GradScaler."""

import torch
from torch import nn

torch.manual_seed(19)
device = "cuda" if torch.cuda.is_available() else "cpu"
LETTERS, POINTS = 20, 24
knots = torch.randn(LETTERS, 5, 2)


def strokes(n):
    """Letters as smooth curves through knots, slanted and shaken by each writer."""
    letter = torch.randint(LETTERS, (n,))
    knot = knots[letter] + 0.25 * torch.randn(n, 5, 2)
    curve = nn.functional.interpolate(knot.transpose(1, 2), POINTS, mode="linear", align_corners=True)
    slant = torch.eye(2) + 0.25 * torch.randn(n, 2, 2)
    curve = slant @ curve + 0.08 * torch.randn(n, 2, POINTS)
    motion = curve.diff(dim=2)
    return torch.cat([curve.flatten(1), 4 * motion.flatten(1)], 1).to(device), letter.to(device)


class LossScale:
    """A power of two that is halved when a gradient is not finite and doubled after a while without."""

    def __init__(self, scale=2.0**24, patience=200):
        self.scale, self.patience, self.good, self.skipped = scale, patience, 0, 0

    def step(self, optimizer, parameters):
        gradients = [p.grad for p in parameters]
        if not all(torch.isfinite(g).all() for g in gradients):
            self.scale, self.good = self.scale / 2, 0
            self.skipped += 1
            return
        for gradient in gradients:
            gradient.div_(self.scale)
        nn.utils.clip_grad_norm_(parameters, 2.0)
        optimizer.step()
        self.good += 1
        if self.good == self.patience:
            self.scale, self.good = min(self.scale * 2, 2.0**24), 0


model = nn.Sequential(
    nn.Linear(4 * POINTS - 2, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, LETTERS)
).to(device)
parameters = list(model.parameters())
optimizer = torch.optim.Adam(parameters, lr=3e-3)
STEPS = 700
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.02, 1 - step / STEPS))
scaler = LossScale()

for step in range(STEPS):
    curve, letter = strokes(128)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(curve), letter)
    optimizer.zero_grad()
    (loss * scaler.scale).backward()
    scaler.step(optimizer, parameters)
    schedule.step()
    if step % 100 == 0:
        print(f"{step:4d} loss {loss.item():.4f} scale {scaler.scale:g} skipped {scaler.skipped}")

model.eval()
curve, letter = strokes(5000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    right = (model(curve).argmax(1) == letter).float().mean()
print("METRIC", round(100 * right.item(), 2))
