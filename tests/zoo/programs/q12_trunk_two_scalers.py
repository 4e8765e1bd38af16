"""Metric learning with a distillation branch on a shared trunk; each branch has its own optimizer and scaler."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
device = "cuda" if torch.cuda.is_available() else "cpu"

teacher = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 48), nn.Tanh()).to(device).requires_grad_(False)
trunk = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU()).to(device)
embed = nn.Linear(24, 16).to(device)
hint = nn.Linear(24, 48).to(device)
proxies = nn.Parameter(F.normalize(torch.randn(10, 16), dim=1).to(device))

main = [*trunk.parameters(), *embed.parameters(), proxies]
opt_main = torch.optim.Adam(main, lr=1e-3)
opt_hint = torch.optim.Adam(hint.parameters(), lr=3e-3)
scaler_main = torch.amp.GradScaler("cuda")
scaler_hint = torch.amp.GradScaler("cuda", init_scale=256.0)  # the hint loss is a sum, it overflows early

means = 0.8 * torch.randn(10, 32)


def batch(n=96):
    y = torch.randint(0, 10, (n,))
    return (means[y] + torch.randn(n, 32)).to(device), y.to(device)


for step in range(200):
    x, y = batch()
    with torch.autocast("cuda", dtype=torch.float16):
        with torch.no_grad():
            target = teacher(x)
        h = trunk(x)
        z = F.normalize(embed(h), dim=1)
        metric_loss = F.cross_entropy(12.0 * z @ F.normalize(proxies, dim=1).t(), y)
        hint_loss = F.mse_loss(hint(h), target, reduction="sum") / len(x)

    opt_main.zero_grad(set_to_none=True)
    opt_hint.zero_grad(set_to_none=True)
    scaler_main.scale(metric_loss).backward(retain_graph=True)
    scaler_hint.scale(hint_loss).backward()

    scaler_main.step(opt_main)
    scaler_hint.step(opt_hint)
    scaler_main.update()
    scaler_hint.update()
    if step % 40 == 0:
        print(f"step {step:3d}  metric {metric_loss.item():.4f}  hint {hint_loss.item():.4f}")

x, y = batch(2000)
with torch.no_grad():
    h = trunk(x)
    acc = ((F.normalize(embed(h), dim=1) @ F.normalize(proxies, dim=1).t()).argmax(1) == y).float().mean()
    left = F.mse_loss(hint(h), teacher(x), reduction="sum") / len(x)
print(f"proxy accuracy {acc.item():.3f}  hint loss {left.item():.4f}")
