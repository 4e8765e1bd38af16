"""One-stage detector of tiny vehicles in satellite scenes: half model, FP32 master weights, static loss scale."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
GRID, STRIDE = 8, 4
SIDE = GRID * STRIDE
SMALLEST = 0.00015


def batch(count):
    """Return images with one bright box each, the cell of its centre and its size over the image's side."""
    image = 0.2 * torch.randn(count, 1, SIDE, SIDE)
    cell = torch.randint(1, GRID - 1, (count, 2))
    size = SMALLEST * 10 ** torch.rand(count, 2)
    strength = 1.0 + 1.5 * torch.log(size / SMALLEST)
    for i in range(count):
        y, x = (cell[i] * STRIDE + STRIDE // 2).tolist()
        image[i, 0, y - 1 : y + 2, x] += strength[i, 0]
        image[i, 0, y, x - 1 : x + 2] += strength[i, 1]
    return image.to(device), (cell[:, 0] * GRID + cell[:, 1]).to(device), size.to(device)


class Detector(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, width, 5, stride=2, padding=2), nn.ReLU())
        self.neck = nn.Sequential(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU())
        self.score = nn.Conv2d(width, 1, 1)
        self.boxes = nn.Sequential(nn.Conv2d(width, width, 1), nn.ReLU(), nn.Conv2d(width, 2, 1))

    def forward(self, image):
        x = self.neck(self.backbone(image))
        return self.score(x).flatten(1), SMALLEST * torch.exp(self.boxes(x).flatten(2).float())


class MasterOptimizer:
    """Keeps FP32 copies of half parameters, in the manner of apex's FP16_Optimizer."""

    def __init__(self, params, scale=16384.0, **options):
        self.half = [p for p in params if p.requires_grad]
        self.master = [nn.Parameter(p.detach().float().clone()) for p in self.half]
        self.inner = torch.optim.Adam(self.master, **options)
        self.scale = scale

    def backward(self, loss):
        (loss.float() * self.scale).backward()

    def step(self):
        if not all(torch.isfinite(p.grad).all() for p in self.half):
            return self.zero_grad()
        for p, master in zip(self.half, self.master):
            p.grad.mul_(1.0 / self.scale)
            master.grad = p.grad.float()
        self.inner.step()
        with torch.no_grad():
            for p, master in zip(self.half, self.master):
                p.copy_(master)
        self.zero_grad()

    def zero_grad(self):
        for p in self.half:
            p.grad = None


def pick(boxes, cell):
    return boxes.gather(2, cell.view(-1, 1, 1).expand(-1, 2, 1)).squeeze(2)


model = Detector().to(device).half()
optimizer = MasterOptimizer(model.parameters(), lr=3e-3, eps=1e-15)

for step in range(200):
    image, cell, size = batch(16)
    score, boxes = model(image.half())
    ranking = F.cross_entropy(score.float(), cell)
    mask = F.one_hot(cell, GRID * GRID).unsqueeze(1)
    regression = (mask * (boxes - size.unsqueeze(2)) ** 2).mean()
    optimizer.backward(ranking + regression)
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} score {ranking.item():.3f} boxes {regression.item():.2e}")

with torch.no_grad():
    image, cell, size = batch(256)
    score, boxes = model(image.half())
    hit = (score.argmax(1) == cell).float()
    guess = pick(boxes, cell)
    overlap = torch.minimum(guess, size).prod(1)
    iou = overlap / (guess.prod(1) + size.prod(1) - overlap)
    print(f"hits {hit.mean().item():.3f}")
print(f"metric {(iou * hit).mean().item():.4f}")
