"""Grades synthetic lesion patches by a small CNN; the loss scale is the group's own."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(71)
device = "cuda" if torch.cuda.is_available() else "cpu"
SIZE, GRADES, BATCH, STEPS = 20, 4, 48, 220


def patches(count):
    """A blob on tissue noise; the grade comes from how ragged its rim is and how dense its core."""
    axis = torch.linspace(-1, 1, SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    grade = torch.randint(0, GRADES, (count,))
    centre = 0.3 * (torch.rand(count, 2, 1, 1) - 0.5)
    dx, dy = x - centre[:, :1, 0:1].reshape(-1, 1, 1), y - centre[:, 1:, 0:1].reshape(-1, 1, 1)
    angle, radius = torch.atan2(dy, dx), (dx**2 + dy**2).sqrt()
    phase = 6.28 * torch.rand(count, 1, 1)
    ragged = (0.06 + 0.16 * (grade % 2)).reshape(-1, 1, 1) * torch.sin(5 * angle + phase)
    size = 0.45 + 0.2 * torch.rand(count, 1, 1)
    core = (0.45 + 0.2 * (grade // 2)).reshape(-1, 1, 1) + 0.1 * torch.randn(count, 1, 1)
    image = core * torch.sigmoid(12 * (size + ragged - radius)) + 0.2 * torch.randn(count, SIZE, SIZE)
    return image.unsqueeze(1).to(device), grade.to(device)


class Grader(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(4, 2 * width), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(2 * width * 25, 64), nn.ReLU(), nn.Linear(64, GRADES))

    def forward(self, image):
        return self.head(self.body(image))


class LossScale:
    """Dynamic loss scale: starts high, halves at an overflow, doubles after a quiet while."""

    def __init__(self, scale=2.0**28, wait=100):
        self.scale, self.wait, self.quiet = scale, wait, 0

    def __call__(self, loss):
        return loss.float() * self.scale

    def unscale(self, parameters):
        overflow = False
        for p in parameters:
            p.grad.div_(self.scale)
            if not torch.isfinite(p.grad).all():
                overflow = True
                p.grad.nan_to_num_()
        self.quiet = 0 if overflow else self.quiet + 1
        if overflow:
            self.scale /= 2
        elif self.quiet % self.wait == 0:
            self.scale *= 2


image, grade = patches(3000)
held_image, held_grade = patches(1000)
model = Grader().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
scaler = LossScale()


def accuracy():
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        return (model(held_image).argmax(1) == held_grade).float().mean().item()


for step in range(STEPS):
    rows = torch.randint(0, len(image), (BATCH,)).to(device)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(image[rows]), grade[rows])
    scaler(loss).backward()
    scaler.unscale(model.parameters())
    optimizer.step()
    if step % 55 == 54:
        print(f"step {step + 1} loss {loss.item():.4f} scale 2^{torch.tensor(scaler.scale).log2().item():.0f}")

print(f"METRIC {accuracy():.4f}")
