"""Bayesian dose-response curve sampled with stochastic gradient Langevin dynamics; prints the width of the credible band."""
import math
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(9)
N, BATCH, SIGMA, LR = 400, 80, 0.15, 4e-6

dose = torch.cat([torch.rand(N // 2, 1) * 0.35, 0.65 + torch.rand(N // 2, 1) * 0.35])
resp = 1 / (1 + torch.exp(-9 * (dose - 0.45))) + SIGMA * torch.randn(N, 1)
dose, resp = dose.to(device), resp.to(device)
grid = torch.linspace(0, 1, 21, device=device)[:, None]

net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=LR)
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 12, growth_interval=500)


def minus_log_posterior(x, y):
    fit = (net(x) - y).float().pow(2).sum() * (N / len(x)) / (2 * SIGMA ** 2)
    prior = sum(p.float().pow(2).sum() for p in net.parameters()) / (2 * 1.0)
    return fit + prior


def add_noise(params, lr):
    for p in params:
        if p.grad is not None:
            p.grad.add_(torch.randn_like(p) * math.sqrt(2.0 / lr))


def warm_up(steps=300):
    fast = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        fast.zero_grad()
        (minus_log_posterior(dose, resp) / N).backward()
        fast.step()


warm_up()
draws, kept = [], None
for step in range(300):
    i = torch.randint(0, N, (BATCH,), device="cpu").to(device)
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        energy = minus_log_posterior(dose[i], resp[i])
    scaler.scale(energy).backward()
    add_noise(net.parameters(), LR)
    scaler.step(opt)
    scaler.update()
    if step >= 60 and step % 4 == 0:
        with torch.no_grad():
            draws.append(net(grid))
    if step % 60 == 0 or step == 299:
        width = torch.stack(draws).std(0).mean().item() if len(draws) > 1 else float("nan")
        print(f"step {step:3d} energy {energy.item():.1f} mean posterior sd of the curve {width:.5f}")
