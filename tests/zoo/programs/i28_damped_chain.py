"""Learn the stiffness of the links of a damped chain from how far its masses swing in a long rollout.

The rollout keeps only its last state; the backward pass steps it back to the start (as reversible networks do).
"""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(21)
MASSES, HORIZON, DT, KEEP = 8, 80, 0.25, 0.73


def push(q, k):
    """Return the force on each mass of a ring of springs that are also held to their places."""
    stretch = torch.roll(q, -1, -1) - q
    pull = k * stretch
    return pull - torch.roll(pull, 1, -1) - 0.2 * q


class Chain(torch.autograd.Function):
    """Mean square of each place in HORIZON steps, in memory that does not grow with HORIZON."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, q, p, k):
        state = torch.float16 if torch.is_autocast_enabled("cuda") else torch.float32
        q, p, k = q.to(state), p.to(state), k.to(state)
        swing = torch.zeros_like(q, dtype=torch.float32)
        for _ in range(HORIZON):
            q = q + DT * p
            p = KEEP * p + DT * push(q, k)
            swing += q.float().square() / HORIZON
        ctx.save_for_backward(q, p, k)
        return swing

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, dswing):
        q, p, k = ctx.saved_tensors
        dq, dp = torch.zeros_like(dswing), torch.zeros_like(dswing)
        dk = torch.zeros_like(k, dtype=torch.float32)
        for _ in range(HORIZON):
            dq = dq + dswing * 2 * q.float() / HORIZON
            stretch = (torch.roll(q, -1, -1) - q).float()
            p = (p - DT * push(q, k)) / KEEP
            q = q - DT * p
            dk += DT * stretch * (dp - torch.roll(dp, -1, -1))
            dq = dq + DT * push(dp, k.float())  # the force is its own transpose
            dp = KEEP * dp + DT * dq
        return dq, dp, dk


class Stiffness(nn.Module):
    """The stiffness of each link by its material."""

    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, material):
        return 0.1 + F.softplus(self.net(material).squeeze(-1).float())


def chains(count):
    """Return materials, the true stiffness, starts and swings."""
    material = torch.rand(count, MASSES, 3) * 2 - 1
    k = 0.5 + 0.4 * torch.tanh(material[..., 0] * 2 + material[..., 1] * material[..., 2])
    q0, p0 = torch.randn(2, count, MASSES)
    return [a.to(device) for a in (material, k, q0, p0, Chain.apply(q0, p0, k))]


model = Stiffness().to(device)
train, test = chains(1024), chains(256)
unit = train[4].std()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
for step in range(120):
    pick = torch.randint(0, 1024, (64,))
    material, _, q0, p0, seen = (a[pick] for a in train)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        swing = Chain.apply(q0, p0, model(material))
    loss = ((swing - seen) / unit).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    error = (model(test[0]) - test[1]).square().mean() / test[1].var()
print(f"final metric: {error.item():.4f}")
