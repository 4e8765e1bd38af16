"""Soft-constrained heat conduction inverse problem, full batch, gradient descent with Armijo backtracking."""
import torch
from torch import nn

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
SCALE = 2.0 ** 16


class ArmijoDescent(torch.optim.Optimizer):
    """x <- x - t g with the largest t = t0 * 0.5^k that gives f(x - t g) <= f(x) - c t |g|^2; no step if there is none."""

    def __init__(self, params, t0=2.0, c=1e-3, max_halvings=30):
        super().__init__(params, dict(t0=t0, c=c, max_halvings=max_halvings))

    def step(self, closure):
        group = self.param_groups[0]
        with torch.enable_grad():
            f0 = closure()
        params = [p for p in group["params"] if p.grad is not None]
        start = [p.detach().clone() for p in params]
        g = [p.grad.clone() for p in params]
        gg = sum((q * q).sum() for q in g).item()
        t = group["t0"]
        with torch.no_grad():
            for _ in range(group["max_halvings"]):
                for p, s, q in zip(params, start, g):
                    p.copy_(s - t * q)
                if closure(backward=False).item() <= f0.item() - group["c"] * t * gg:
                    return f0
                t *= 0.5
            for p, s in zip(params, start):
                p.copy_(s)
        return f0


x = torch.linspace(-1, 1, 256, device=device).unsqueeze(1)
target = torch.exp(-3 * x ** 2) * torch.cos(4 * x) + 0.2 * x
net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)).to(device)
opt = ArmijoDescent(net.parameters())


def closure(backward=True):
    with torch.autocast(device_type=device, dtype=torch.float16):
        u = net(3 * x)
    edge = u.float()[[0, -1]] - target[[0, -1]]
    loss = nn.functional.mse_loss(u.float(), target) + 0.1 * (edge ** 2).mean()
    if backward:
        opt.zero_grad()
        (loss * SCALE).backward()      # fp16 gradients would underflow otherwise
    return loss


for it in range(160):
    loss = opt.step(closure)
    if it % 40 == 0 or it == 159:
        print(f"iteration {it:3d}  loss {loss.item():.6f}")
