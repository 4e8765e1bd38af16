"""Classify radar return types; own dynamic loss scaling (ported from an old in-house trainer)."""
import torch
from torch import nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(41)


class ScaleState:
    def __init__(self, init=2.0 ** 16, growth_every=5, up=2.0, down=0.5):
        self.value = init
        self.growth_every = growth_every
        self.up, self.down = up, down
        self.streak = 0

    def feedback(self, overflowed):
        if overflowed:
            self.value *= self.down
            self.streak = 0
            return
        self.streak += 1
        if self.streak == self.growth_every:
            self.value *= self.up
            self.streak = 0


def grad_norm(params, inv_scale):
    total = 0.0
    for p in params:
        p.grad.mul_(inv_scale)
        total += p.grad.norm(2).item() ** 2
    return total ** 0.5


def make_pulses(n, gen):
    y = torch.randint(0, 4, (n,), generator=gen)
    t = torch.linspace(0, 1, 96)
    chirp = torch.tensor([0.0, 8.0, 16.0, -8.0])[y].unsqueeze(1)
    phase = 6.2832 * (torch.rand(n, 1, generator=gen) + 10 * t + chirp * t * t)
    amp = 0.6 + 0.8 * torch.rand(n, 1, generator=gen)
    x = torch.stack([amp * phase.cos(), amp * phase.sin()], 1) + 0.5 * torch.randn(n, 2, 96, generator=gen)
    return x.to(device), y.to(device)


class PulseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(2 * 96, 128)
        self.mid = nn.Linear(128, 128)
        self.cls = nn.Linear(128, 4)

    def forward(self, x):
        h = F.relu(self.lift(x.flatten(1)))
        h = F.relu(self.mid(h))
        return self.cls(h)


net = PulseNet().to(device)
params = list(net.parameters())
opt = torch.optim.Adam(params, lr=1e-3)
state = ScaleState()
gen = torch.Generator().manual_seed(42)
skips = 0
MAX_NORM = 10.0

for step in range(200):
    x, y = make_pulses(128, gen)
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    (loss * state.value).backward()
    norm = grad_norm(params, 1.0 / state.value)
    overflowed = norm == float("inf")
    if overflowed:
        skips += 1
    else:
        if norm > MAX_NORM:
            for p in params:
                p.grad.mul_(MAX_NORM / norm)
        opt.step()
    state.feedback(overflowed)
    if step % 25 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}  norm {norm:.3f}  scale {state.value:.0f}  skips {skips}")

x, y = make_pulses(2000, gen)
with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
    acc = (net(x).argmax(1) == y).float().mean().item()
print(f"test accuracy {acc:.3f}")
