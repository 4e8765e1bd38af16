# Surrogate for a heat equation: network maps initial modes + (x, t) -> temperature field. fp16 weights, fp32 masters.
import numpy as np
import torch
import torch.nn as nn

SCALE = 8192.0
torch.manual_seed(0)
rng = np.random.default_rng(0)
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Surrogate(nn.Module):
    def __init__(self, modes=6, grid=128, width=64):
        super().__init__()
        self.lift = nn.Linear(modes + 1, width)
        self.body = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.readout = nn.Linear(width, grid)
        nn.init.normal_(self.readout.weight, std=0.0005)
        nn.init.zeros_(self.readout.bias)

    def forward(self, a):
        h = torch.tanh(self.lift(a))
        for layer in self.body:
            h = h + torch.tanh(layer(h))
        return self.readout(h)


def solve(a, t, grid=128):
    x = np.linspace(0, 1, grid)
    k = np.arange(1, a.shape[1] + 1)
    decay = np.exp(-0.5 * (k ** 2) * t[:, None])
    return (a * decay) @ np.sin(np.pi * k[:, None] * x[None])


def get_batch(n=96):
    a = rng.normal(size=(n, 6)) / np.arange(1, 7)
    t = rng.uniform(0, 0.3, size=n)
    u = 0.002 * solve(a, t)
    inp = np.concatenate([a, t[:, None]], 1)
    return torch.tensor(inp, dtype=torch.float16, device=dev), torch.tensor(u, dtype=torch.float32, device=dev)


net = Surrogate().to(dev).half()
half_params = [p for p in net.parameters()]
master = [torch.nn.Parameter(p.detach().float()) for p in half_params]
optimizer = torch.optim.Adam(master, lr=1e-3, eps=1e-12)


def master_grads():
    for p, m in zip(half_params, master):
        p.grad /= SCALE
        if m.grad is None:
            m.grad = torch.empty_like(m)
        m.grad.copy_(p.grad)


def master_to_model():
    for p, m in zip(half_params, master):
        p.data.copy_(m.data)


for it in range(120):
    a, u = get_batch()
    pred = net(a).float()
    loss = (pred - u).pow(2).mean()
    for p in half_params:
        p.grad = None
    (SCALE * loss).backward()
    if not all(torch.isfinite(p.grad).all() for p in half_params):
        print("overflow, skipped", it)
        continue
    master_grads()
    optimizer.step()
    master_to_model()
    if it % 30 == 0 or it == 119:
        rel = ((pred - u).norm() / u.norm()).item()
        print(f"it {it:4d}  mse {loss.item():.3e}  rel l2 {rel:.4f}")
