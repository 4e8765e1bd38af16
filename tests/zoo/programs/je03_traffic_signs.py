"""Tiny traffic-sign classifier: half weights with fp32 masters and gradient clipping."""
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES, SIZE = 6, 16


def draw_signs(rng, n):
    labels = rng.integers(0, CLASSES, n)
    yy, xx = np.mgrid[-1:1:SIZE * 1j, -1:1:SIZE * 1j]
    images = np.zeros((n, 1, SIZE, SIZE), np.float32)
    for i, label in enumerate(labels):
        dx, dy, r = rng.uniform(-0.2, 0.2), rng.uniform(-0.2, 0.2), rng.uniform(0.5, 0.8)
        u, v = xx - dx, yy - dy
        shape = [
            u**2 + v**2 < r**2,
            np.maximum(abs(u), abs(v)) < r * 0.85,
            abs(u) + abs(v) < r,
            (v > -r * 0.6) & (abs(u) < (r - v) / 2),
            (u**2 + v**2 < r**2) & (u**2 + v**2 > (0.6 * r) ** 2),
            (abs(v) < 0.2) & (abs(u) < r),
        ][label]
        images[i, 0] = shape
    images += rng.normal(0, 0.4, images.shape)
    return torch.from_numpy(images.astype(np.float32)), torch.from_numpy(labels)


def build():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (SIZE // 4) ** 2, CLASSES),
    )


def grad_norm(params):
    total = 0.0
    for p in params:
        total = total + (p.grad * p.grad).sum()
    return total.sqrt()


class FP16Trainer:
    def __init__(self, model, lr=0.1, scale=2.0**10, max_norm=1.0):
        self.model = model.to(device).half()
        self.half = list(self.model.parameters())
        self.full = [nn.Parameter(p.detach().clone().float()) for p in self.half]
        self.opt = torch.optim.SGD(self.full, lr=lr, momentum=0.9)
        self.scale, self.max_norm = scale, max_norm

    def train_step(self, x, y):
        self.model.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(x.half()).float(), y)
        (loss * self.scale).backward()
        if not all(torch.isfinite(p.grad).all() for p in self.half):
            self.scale /= 2
            return loss.item()
        norm = grad_norm(self.half) / self.scale
        coef = min(1.0, self.max_norm / (float(norm) + 1e-6))
        for p, m in zip(self.half, self.full):
            m.grad = p.grad.float() * (coef / self.scale)
        self.opt.step()
        with torch.no_grad():
            for p, m in zip(self.half, self.full):
                p.copy_(m)
        return loss.item()


def main():
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    x, y = draw_signs(rng, 1200)
    xt, yt = draw_signs(rng, 500)
    trainer = FP16Trainer(build(), lr=0.03)
    for step in range(70):
        i = torch.randint(0, len(x), (32,))
        loss = trainer.train_step(x[i].to(device), y[i].to(device))
        if step % 30 == 0:
            print("step", step, "loss", round(loss, 4), "scale", trainer.scale)
    trainer.model.eval()
    with torch.no_grad():
        hit = trainer.model(xt.to(device).half()).argmax(1).cpu() == yt
    print(f"metric {hit.float().mean().item():.4f}")


main()
