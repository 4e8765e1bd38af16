import math
import torch
from torch import nn
from torch.optim import Optimizer

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SlimAdam(Optimizer):
    """Adam whose two moments take half the memory."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, state_dtype=torch.float16):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, state_dtype=state_dtype))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"] = 0
                    s["m"] = torch.zeros_like(p, dtype=group["state_dtype"])
                    s["v"] = torch.zeros_like(p, dtype=group["state_dtype"])
                s["t"] += 1
                m = s["m"].float().mul_(b1).add_(p.grad, alpha=1 - b1)
                v = s["v"].float().mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                s["m"].copy_(m)
                s["v"].copy_(v)
                mh = s["m"].float() / (1 - b1 ** s["t"])
                vh = s["v"].float() / (1 - b2 ** s["t"])
                p.add_(mh / (vh.sqrt() + group["eps"]), alpha=-group["lr"])


torch.manual_seed(3)
# tabular: house-like features, log-price target
n, d = 1024, 24
X = torch.randn(n, d)
y = (X[:, :6].sum(1) * 0.2 + 0.3 * torch.sin(2 * X[:, 7])).unsqueeze(1) * 0.05
X, y = X.to(device), y.to(device)

model = nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
opt = SlimAdam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device.type)

losses = []
for epoch in range(4):
    perm = torch.randperm(n)
    for i in range(0, n, 64):
        idx = perm[i:i + 64].to(device)
        with torch.autocast(device_type=device.type, dtype=torch.float16):
            pred = model(X[idx])
            loss = nn.functional.mse_loss(pred, y[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
v_all = torch.cat([opt.state[p]["v"].float().flatten() for p in model.parameters()]).cpu()
v_zero = float((v_all == 0).float().mean())
last = sum(losses[-16:]) / 16
print(f"first {losses[0]:.5f} last {last:.5f} zero second moments {v_zero:.2f} scale {scaler.get_scale()}")
