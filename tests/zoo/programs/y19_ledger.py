"""Fraud scoring on ledger rows: compact weights for compute, full copies for the update."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(141)
gen = torch.Generator().manual_seed(142)
DT = torch.bfloat16

truth = torch.randn(20, generator=gen)


def rows(n=256):
    x = torch.randn(n, 20, generator=gen)
    z = x @ truth / 2 + x[:, 0] * x[:, 1]
    y = (z + torch.randn(n, generator=gen) > 0.5).float()
    return x.to(device), y.to(device)


model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
master = [p.detach().clone().float().requires_grad_(True) for p in model.parameters()]
model = model.to(DT)
opt = torch.optim.AdamW(master, lr=3e-4, weight_decay=1e-3)

for step in range(300):
    x, y = rows()
    logit = model(x.to(DT)).squeeze(1)
    loss = F.binary_cross_entropy_with_logits(logit.float(), y)
    model.zero_grad(set_to_none=True)
    loss.backward()
    for m, p in zip(master, model.parameters()):
        m.grad = p.grad.float()
    torch.nn.utils.clip_grad_norm_(master, 5.0)
    opt.step()
    with torch.no_grad():
        for m, p in zip(master, model.parameters()):
            p.copy_(m)
    if step % 60 == 59:
        acc = ((logit > 0).float() == y).float().mean().item()
        print(f"{step + 1} bce {loss.item():.4f} acc {acc:.3f}")
