"""Score model for two-sensor vibration states, sliced score matching with directional differences."""
import math
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(41)
gen = torch.Generator().manual_seed(42)
CENTRES = 2.0 * torch.tensor([[math.cos(a), math.sin(a)] for a in torch.arange(5) * 2 * math.pi / 5])
STD = 0.6


def states(n):
    k = torch.randint(0, 5, (n,), generator=gen)
    return (CENTRES[k] + STD * torch.randn(n, 2, generator=gen)).to(device)


def true_score(x):
    diff = CENTRES.to(x.device)[None] - x[:, None]
    w = torch.softmax(-diff.square().sum(-1) / (2 * STD ** 2), 1)
    return (w[..., None] * diff).sum(1) / STD ** 2


class ScoreNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.inp = nn.Linear(2, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)

    def forward(self, x):
        h = nn.functional.softplus(self.inp(x))
        h = h + nn.functional.softplus(self.mid(h))
        return self.out(h)


def sliced_loss(score, x, v, eps=1e-4):
    s = score(x).float()
    ahead = score(x + eps * v).float()
    behind = score(x - eps * v).float()
    curvature = ((ahead - behind) * v).sum(1) / (2 * eps)
    return (curvature + 0.5 * (s * v).sum(1).square()).mean()


net = ScoreNet().to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device, init_scale=64.0)
for step in range(250):
    x = states(256)
    v = torch.randn(256, 2, generator=gen).to(device)
    with torch.autocast(device, dtype=torch.float16):
        loss = sliced_loss(net, x, v)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    if step % 50 == 0:
        print(f"step {step:3d} objective {loss.item():8.3f}")

with torch.no_grad():
    x = states(4000)
    fisher = (net(x) - true_score(x)).square().sum(1).mean().item()
    base = true_score(x).square().sum(1).mean().item()
print(f"Fisher divergence {fisher:.3f} (zero score {base:.3f})")
