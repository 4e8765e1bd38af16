"""Crop yield from the weather of a season; farms send bfloat16 gradients to a server."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(19)
device = "cuda" if torch.cuda.is_available() else "cpu"
FARMS, ROUNDS, BATCH, WEEKS = 4, 120, 48, 24
WIRE = torch.bfloat16
TONNE = 1e-3  # targets are in tonnes for a plot, a few thousandths each


def seasons(count, soil):
    """Rain and warmth by the week, and what was harvested."""
    rain = torch.relu(torch.randn(count, WEEKS) + 0.5)
    warm = torch.randn(count, WEEKS).cumsum(-1) * 0.2
    growth = torch.sigmoid(warm) * torch.tanh(rain)
    week = torch.linspace(0, 3.14159, WEEKS)
    harvest = (growth * torch.sin(week)).sum(-1) * (0.5 + 0.1 * soil)
    ground = torch.full((count, 1), float(soil))
    return torch.cat([rain, warm, ground], -1), TONNE * (harvest - 2.5 + 0.05 * torch.randn(count))


body = nn.Sequential(nn.Linear(2 * WEEKS + 1, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()).to(device)
head = nn.Linear(64, 1).to(device)
params = [*body.parameters(), *head.parameters()]
body_opt = torch.optim.Adam(body.parameters(), lr=2e-3, eps=1e-14)
head_opt = torch.optim.Adam(head.parameters(), lr=4e-3, eps=1e-14)


def farm_gradients(x, y):
    """Gradients of a farm as they go over the link."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = head(body(x)).squeeze(-1)
    loss = F.mse_loss(out.float() * TONNE, y)
    grads = torch.autograd.grad(loss, params)
    return [g.to(WIRE) for g in grads], loss.item()


farms = [tuple(v.to(device) for v in seasons(1024, k)) for k in range(FARMS)]
tests = [tuple(v.to(device) for v in seasons(512, k)) for k in range(FARMS)]

for turn in range(ROUNDS):
    total, losses = [torch.zeros_like(p) for p in params], []
    for x, y in farms:
        pick = torch.randint(0, len(x), (BATCH,), device=device)
        grads, loss = farm_gradients(x[pick], y[pick])
        for t, g in zip(total, grads):
            t.add_(g.float(), alpha=1 / FARMS)
        losses.append(loss)
    for p, t in zip(params, total):
        p.grad = t
    body_opt.step()
    head_opt.step()
    if turn % 30 == 0:
        print(f"round {turn} rmse {(sum(losses) / FARMS) ** 0.5 / TONNE:.3f} kg")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    errors = torch.cat([head(body(x)).squeeze(-1).float() * TONNE - y for x, y in tests])
print(f"metric {errors.pow(2).mean().sqrt().item() / TONNE:.4f}")
