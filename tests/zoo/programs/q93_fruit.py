"""Fruit sorting by a camera with a rare defect; half-precision network with FP32 master weights."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, BATCH, CLASSES = 600, 32, 4
SHARE = torch.tensor([0.5, 0.3, 0.19, 0.01])


def crops(n, share):
    """16x16 crops: plain, striped, speckled, and bruised (a dark off-centre spot)."""
    label = torch.multinomial(share, n, replacement=True)
    axis = torch.linspace(-1, 1, 16)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    image = 0.6 - 0.3 * (xx**2 + yy**2) + 0.1 * torch.randn(n, 1, 1) + 0.05 * torch.randn(n, 16, 16)
    stripes = 0.15 * torch.sin(8 * xx + 6.283 * torch.rand(n, 1, 1))
    speckle = 0.3 * (torch.rand(n, 16, 16) < 0.08)
    cx, cy = 0.5 * torch.randn(2, n, 1, 1)
    bruise = -0.5 * torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / 0.1)
    extra = torch.stack([torch.zeros_like(image), stripes, -speckle, bruise], 1)
    return (image + extra[torch.arange(n), label])[:, None], label


class Master:
    """FP32 copies of half weights with SGD, and a loss scale."""

    def __init__(self, model, lr, scale=2.0**14):
        self.low = [p for p in model.parameters()]
        self.master = [p.detach().float().clone() for p in self.low]
        self.inner = torch.optim.Adam(self.master, lr=lr)
        self.scale, self.skipped = scale, 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self):
        if not all(torch.isfinite(p.grad).all() for p in self.low):
            self.skipped += 1
        else:
            for m, p in zip(self.master, self.low):
                m.grad = p.grad.float() / self.scale
            self.inner.step()
            with torch.no_grad():
                for m, p in zip(self.master, self.low):
                    p.copy_(m)
        for p in self.low:
            p.grad = None


net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(16 * 16, 48), nn.ReLU(), nn.Linear(48, CLASSES),
).to(device).to(torch.float16)
weight = (0.3 / SHARE).clamp(max=30.0).to(device)
trainer = Master(net, lr=2e-3)
for step in range(STEPS):
    x, y = crops(BATCH, SHARE)
    x, y = x.to(device), y.to(device)
    logits = net(x.to(torch.float16)).float()
    loss = (F.cross_entropy(logits, y, reduction="none") * weight[y]).mean()
    trainer.inner.param_groups[0]["lr"] = 2e-3 * (1 - step / STEPS)
    trainer.backward(loss)
    trainer.step()
    if step % 150 == 0:
        print(f"step {step} loss {loss.item():.3f} accuracy {(logits.argmax(1) == y).float().mean():.3f}")

net.eval()
with torch.no_grad():
    x, y = crops(4000, torch.ones(CLASSES))
    guess = net(x.to(device).to(torch.float16)).argmax(1).cpu()
recall = torch.stack([(guess[y == c] == c).float().mean() for c in range(CLASSES)])
print("recall", [round(r, 3) for r in recall.tolist()], "skipped", trainer.skipped)
print(f"METRIC {recall.mean().item():.4f}")
