"""Hand signs from the landmarks of a hand in a camera picture (pixel coordinates)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"

POINTS, SIGNS, WIDTH = 12, 6, 640
STEPS, BATCH = 200, 128

# what the hand looks like for each sign, about its centre, in hand sizes
shapes = torch.randn(SIGNS, POINTS, 2) * 0.35


def pictures(n):
    """Landmarks of hands somewhere in the picture, larger or smaller, turned a little."""
    sign = torch.randint(SIGNS, (n,))
    angle = 0.25 * torch.randn(n)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(n, 2, 2)
    size = 110 + 70 * torch.rand(n, 1, 1)
    centre = torch.tensor([WIDTH / 2, WIDTH / 2]) + 50 * torch.randn(n, 1, 2)
    points = centre + size * (shapes[sign] @ turn) + 14.0 * torch.randn(n, POINTS, 2)
    return points.clamp(0, WIDTH).to(device), sign.to(device)


class RMSNorm(nn.Module):
    """Root mean square normalization."""

    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        power = (x * x).mean(-1, keepdim=True)
        return x * torch.rsqrt(power + self.eps).to(x.dtype) * self.weight


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = RMSNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


class SignNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Linear(2 * POINTS, width)
        self.first, self.second = Block(width), Block(width)
        self.norm, self.head = RMSNorm(width), nn.Linear(width, SIGNS)

    def forward(self, points):
        x = self.first(self.embed(points.flatten(1)))
        x = x + self.second(x)
        return self.head(self.norm(x))


model = SignNet().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 6e-3, total_steps=STEPS)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    points, sign = pictures(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(points), sign)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    sched.step()

model.eval()
points, sign = pictures(3000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    accuracy = (model(points).argmax(1) == sign).float().mean()
print(f"metric {accuracy.item():.4f}")
