"""Learns to weigh automatically coded stays by a small chart-reviewed set (Ren et al. 2018): many codes per stay."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, CODES, LR = 40, 50, 2e-3
VIRTUAL = 1e-5  # length of the step that is only looked at, short enough for the first order to hold

to_codes = torch.randn(FEATURES, CODES)


def stays(n, wrong=0.0):
    """Features of a stay and its codes; the automatic coder gives some stays the codes next to theirs."""
    x = torch.randn(n, FEATURES)
    score = (x + 0.5 * x.roll(1, 1) * x.roll(2, 1)) @ to_codes / FEATURES**0.5
    y = (score > 1.0).float()
    bad = (torch.rand(n, 1) < wrong).float()
    y = bad * y.roll(1, 1) + (1 - bad) * y  # one line off in the list of codes
    return x.to(device), y.to(device)


def network():
    return nn.Sequential(nn.Linear(FEATURES, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, CODES))


def cost(logits, y):
    return nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none").mean(-1)


def weigh(model, x, y, good_x, good_y):
    """Weights of the stays: how much a small step on each would lower the cost of the reviewed ones."""
    params = dict(model.named_parameters())
    eps = torch.zeros(len(x), device=device, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        inner = (cost(functional_call(model, params, (x,)), y) * eps).sum()
    grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
    ahead = {k: p - VIRTUAL * g for (k, p), g in zip(params.items(), grads)}
    with torch.autocast("cuda", dtype=torch.float16):
        outer = cost(functional_call(model, ahead, (good_x,)), good_y).mean()
    slope = torch.autograd.grad(outer, eps)[0]
    weight = torch.clamp(-slope, min=0)
    total = weight.sum()
    return weight / total if total > 0 else weight


x, y = stays(6000, wrong=0.5)
good_x, good_y = stays(200)
test_x, test_y = stays(2000)
model = network().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=LR)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
for step in range(500):
    rows = torch.randint(0, len(x), (128,), device=device)
    weight = weigh(model, x[rows], y[rows], good_x, good_y)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = (weight * cost(model(x[rows]), y[rows])).sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 100 == 0:
        print(f"step {step} cost {loss.item():.4f} stays in use {(weight > 0).float().mean().item():.2f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    said = model(test_x) > 0
hits = (said & (test_y > 0)).sum()
f1 = 2 * hits / (said.sum() + test_y.sum())
print(f"METRIC {f1.item():.4f}")
