"""Optimal Brain Damage on a glyph classifier: train, collect the curvature, prune 80 % of the weights, tune."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES, SIZE, KEEP = 16, 12, 0.2

strokes = F.interpolate(torch.randn(CLASSES, 1, 4, 4), size=SIZE + 4, mode="bilinear")


def glyphs(n):
    label = torch.randint(CLASSES, (n,))
    dy, dx = torch.randint(5, (2, n))
    rows = (dy.view(-1, 1) + torch.arange(SIZE)).unsqueeze(2)
    columns = (dx.view(-1, 1) + torch.arange(SIZE)).unsqueeze(1)
    image = strokes[label.view(-1, 1, 1), 0, rows, columns]
    return (image + 0.6 * torch.randn_like(image)).flatten(1).to(device), label.to(device)


net = nn.Sequential(
    nn.Linear(SIZE * SIZE, 128), nn.ReLU(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, CLASSES)
).to(device)
weights = [p for p in net.parameters() if p.dim() > 1]
train_x, train_y = glyphs(4000)
test_x, test_y = glyphs(2000)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
curvature = [torch.zeros_like(w, dtype=torch.float16) for w in weights]


def backward(size=64):
    pick = torch.randint(len(train_x), (size,)).to(device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(net(train_x[pick]), train_y[pick])
    net.zero_grad()
    scaler.scale(loss).backward()
    return loss.item()


def accuracy():
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        return (net(test_x).argmax(1) == test_y).float().mean().item()


optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
for i in range(600):
    loss = backward()
    scaler.step(optimizer)
    scaler.update()
    if i % 150 == 149:
        print(f"train {i + 1} loss {loss:.3f} accuracy {accuracy():.3f}")

ROUNDS = 100
for i in range(ROUNDS):
    backward(128)
    for w, c in zip(weights, curvature):
        c += (w.grad / scaler.get_scale()).square() / ROUNDS

saliency = [0.5 * w.detach().square() * c.float() for w, c in zip(weights, curvature)]
flat = torch.cat([s.flatten() for s in saliency])
kept = torch.zeros_like(flat)
kept[flat.topk(int(KEEP * len(flat))).indices] = 1.0
masks = [m.view_as(w) for m, w in zip(kept.split([w.numel() for w in weights]), weights)]
for w, m in zip(weights, masks):
    w.data.mul_(m)
print("kept per layer", [int(m.sum()) for m in masks], f"accuracy {accuracy():.3f}")

optimizer = torch.optim.AdamW(net.parameters(), lr=5e-4)
for i in range(60):
    backward()
    scaler.step(optimizer)
    scaler.update()
    for w, m in zip(weights, masks):
        w.data.mul_(m)
print(f"METRIC {accuracy():.4f}")
