"""Which bell of a carillon, and how hard was it struck? Two tasks that pull at one encoder with equal strength."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(41)
BELLS, BINS = 6, 80


class EqualPull(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, length):
        ctx.length = length
        return h.view_as(h)

    @staticmethod
    def backward(ctx, g):
        wide = g.float()
        norm = (wide * wide).sum().sqrt()
        return (wide * (ctx.length / (norm + 1e-6))).to(g.dtype), None


class Carillon(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(BINS, 48), nn.GELU(), nn.Linear(48, width), nn.Tanh())
        self.bell = nn.Linear(width, BELLS)
        self.strike = nn.Linear(width, 1)

    def forward(self, x, length):
        h = self.encoder(x)
        return self.bell(EqualPull.apply(h, length)), self.strike(EqualPull.apply(h, length)).squeeze(-1)


def strikes(n, partials):
    bell = torch.randint(0, BELLS, (n,))
    force = torch.rand(n)
    grid = torch.linspace(0, 1, BINS)
    lines = torch.exp(-((grid[None, None] - partials[bell][:, :, None]) ** 2) / 0.0008)
    tilt = torch.stack([torch.ones(n), force, force**2], -1)
    x = (lines * tilt[:, :, None]).sum(1) + 0.3 * torch.randn(n, BINS)
    return x.to(device), bell.to(device), force.to(device)


partials = torch.stack([torch.linspace(0.08, 0.3, BELLS), torch.linspace(0.35, 0.6, BELLS), torch.linspace(0.62, 0.92, BELLS)], -1)
train, test = strikes(1500, partials), strikes(1000, partials)
net = Carillon().to(device)
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(150):
    pick = torch.randint(0, len(train[0]), (96,), device=device)
    x, bell, force = (part[pick] for part in train)
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        logits, hard = net(x, length=0.1 * scaler.get_scale())
        loss = F.cross_entropy(logits, bell) + 2.0 * F.mse_loss(hard.float(), force)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    logits, hard = net(test[0], length=1.0)
print(f"bell accuracy {(logits.argmax(-1) == test[1]).float().mean().item():.4f}")
print(f"metric {F.mse_loss(hard.float(), test[2]).sqrt().item():.4f}")
