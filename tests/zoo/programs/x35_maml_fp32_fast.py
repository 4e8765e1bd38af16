# First-order MAML on sinusoids under autocast, fast weights through functional_call.
import torch, torch.nn as nn
from torch.func import functional_call

torch.manual_seed(79)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


def loss_fn(params, x, y):
    with torch.autocast(device, dtype=torch.float16):
        return nn.functional.mse_loss(functional_call(net, params, (x,)), y)


for it in range(100):
    opt.zero_grad()
    tot = 0.0
    for _ in range(3):
        amp, ph = 0.5 + 2 * torch.rand(1), 3.14 * torch.rand(1)
        xs, xq = 10 * torch.rand(20, 1) - 5, 10 * torch.rand(20, 1) - 5
        ys, yq = amp * torch.sin(xs + ph), amp * torch.sin(xq + ph)
        fast = dict(net.named_parameters())
        for _ in range(3):
            l = loss_fn(fast, xs.to(device), ys.to(device)) * 128.0
            gs = torch.autograd.grad(l, list(fast.values()))
            fast = {k: p - 0.01 * (g / 128.0) for (k, p), g in zip(fast.items(), gs)}
        q = loss_fn(fast, xq.to(device), yq.to(device))
        (q / 3).backward()
        tot += q.item() / 3
    opt.step()
    if it % 25 == 0 or it == 99:
        print(f"{it} query loss {tot:.4f}")
