"""Data hyper-cleaning: per-sample weights of a noisy training set, learned on a small clean set (DARTS, second order)."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
N, CLEAN, DIM, CLASSES, NOISE = 1000, 200, 40, 8, 0.5

centres = torch.randn(CLASSES, DIM) * 0.45


def draw(n):
    y = torch.randint(CLASSES, (n,))
    return (centres[y] + 0.7 * torch.randn(n, DIM)).to(device), y.to(device)


x, y_true = draw(N)
flip = (torch.rand(N) < NOISE).to(device)
y = torch.where(flip, torch.randint(CLASSES, (N,)).to(device), y_true)
clean_x, clean_y = draw(CLEAN)
test_x, test_y = draw(3000)

net = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, CLASSES)).to(device)
alpha = torch.zeros(N, device=device, requires_grad=True)
params = list(net.parameters())
w_opt = torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4)
a_opt = torch.optim.Adam([alpha], lr=5e-2, betas=(0.5, 0.99))


def train_loss(rows):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        each = F.cross_entropy(net(x[rows]), y[rows], reduction="none")
    return (torch.sigmoid(alpha[rows]) * each).mean()


def clean_loss():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return F.cross_entropy(net(clean_x), clean_y)


def architect(rows, lr):
    """Gradient of the clean loss through one virtual step, by central differences."""
    grads = torch.autograd.grad(train_loss(rows), params)
    with torch.no_grad():
        kept = [p.clone() for p in params]
        for p, g in zip(params, grads):
            p -= lr * g
    loss = clean_loss()
    vector = torch.autograd.grad(loss, params)
    eps = 1e-3 / torch.cat([v.flatten() for v in vector]).norm()
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, k, v in zip(params, kept, vector):
                p.copy_(k + sign * eps * v)
        sides.append(torch.autograd.grad(train_loss(rows), alpha)[0])
    with torch.no_grad():
        for p, k in zip(params, kept):
            p.copy_(k)
    alpha.grad = -lr * (sides[0] - sides[1]) / (2 * eps)
    return loss.item()


for step in range(600):
    rows = torch.randint(N, (200,), device=device)
    outer = architect(rows, 0.1)
    a_opt.step()
    inner = train_loss(rows)
    w_opt.zero_grad()
    inner.backward()
    w_opt.step()
    if step % 150 == 0:
        with torch.no_grad():
            weight = torch.sigmoid(alpha)
        print(f"step {step} inner {inner.item():.3f} outer {outer:.3f} mean weight {weight.mean().item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    accuracy = (net(test_x).argmax(1) == test_y).float().mean().item()
weight = torch.sigmoid(alpha.detach())
print(f"weight of intact {weight[~flip].mean().item():.3f} of flipped {weight[flip].mean().item():.3f}")
print(f"METRIC {accuracy:.4f}")
