"""Small CNN with a memory-saving Adam that keeps its moments in 16 bits."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SlimAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, state_dtype=torch.float16):
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
                g = p.grad
                m = s["m"].float().mul_(b1).add_(g, alpha=1 - b1)
                v = s["v"].float().mul_(b2).addcmul_(g, g, value=1 - b2)
                s["m"].copy_(m)
                s["v"].copy_(v)
                mhat = s["m"].float() / (1 - b1 ** s["t"])
                vhat = s["v"].float() / (1 - b2 ** s["t"])
                p.sub_(group["lr"] * mhat / (vhat.sqrt() + group["eps"]))


model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(576, 6),
).to(device)
optimizer = SlimAdam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device.type)
patterns = torch.randn(6, 1, 12, 12)
losses = []
for step in range(30):
    y = torch.randint(0, 6, (32,))
    x = patterns[y] + 0.5 * torch.randn(32, 1, 12, 12)
    with torch.autocast(device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
    if step % 6 == 0:
        print(step, losses[-1])
