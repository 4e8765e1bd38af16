"""Neural GARCH on ten-second returns of an index future.

A small network maps the recent tape to the parameters of the conditional variance, which is rolled forward inside a
window; trained by Gaussian likelihood.  The unrolled window keeps many activations, so what autograd saves is packed.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(2)

CONTEXT, ROLL = 16, 20
BATCH, STEPS = 64, 240


def tape(length, generator):
    """Returns with slow regimes of volatility; also returns the true variance."""
    noise = torch.randn(length, generator=generator)
    shock = torch.randn(length, generator=generator)
    level = 0.0
    returns, variance = torch.zeros(length), torch.zeros(length)
    for t in range(length):
        level = 0.985 * level + 0.16 * shock[t].item()
        variance[t] = (4e-5 * 2.718281828 ** (0.8 * level)) ** 2
        returns[t] = variance[t] ** 0.5 * noise[t]
    return returns, variance


class PackHalf:
    """Store floating tensors for backward in two bytes."""

    def __enter__(self):
        self.hooks = saved_tensors_hooks(self.pack, self.unpack)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)

    @staticmethod
    def pack(tensor):
        if tensor.dtype == torch.float32 and not tensor.is_leaf:
            return tensor.half(), tensor.dtype
        return tensor, tensor.dtype

    @staticmethod
    def unpack(packed):
        tensor, dtype = packed
        return tensor.to(dtype)


class NeuralGarch(nn.Module):
    def __init__(self, unit, width=32):
        super().__init__()
        self.unit = unit
        self.encoder = nn.Sequential(nn.Linear(CONTEXT, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.start = nn.Linear(width, 1)
        self.omega = nn.Linear(width, 1)
        self.mix = nn.Linear(width, 3)

    def forward(self, context, rolled):
        """Variance of each return in `rolled`, given the ones before it."""
        h = self.encoder((context / self.unit).abs().log1p())
        variance = F.softplus(self.start(h).float()).squeeze(1) * self.unit**2
        omega = F.softplus(self.omega(h).float()).squeeze(1) * self.unit**2
        alpha, beta, gamma = self.mix(h).float().softmax(1).unbind(1)
        out = []
        for t in range(rolled.shape[1]):
            out.append(variance)
            variance = gamma * omega + alpha * rolled[:, t] ** 2 + beta * variance
        return torch.stack(out, 1)


def likelihood(returns, variance):
    variance = variance.clamp_min(1e-12)
    return 0.5 * (variance.log() + returns**2 / variance).mean()


def cut(returns, starts):
    index = starts[:, None] + torch.arange(CONTEXT + ROLL)
    window = returns[index]
    return window[:, :CONTEXT].to(device), window[:, CONTEXT:].to(device)


generator = torch.Generator().manual_seed(8)
returns, true_variance = tape(17000, generator)
unit = returns[:7000].std().item()
model = NeuralGarch(unit).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for step in range(STEPS):
    context, rolled = cut(returns, torch.randint(0, 7000 - CONTEXT - ROLL, (BATCH,), generator=generator))
    with PackHalf(), torch.autocast("cuda", dtype=torch.float16):
        variance = model(context, rolled)
    loss = likelihood(rolled, variance)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 30 == 0:
        print(f"step {step:3d}  nll {loss.item():.4f}")

starts = torch.arange(7000, 17000 - CONTEXT - ROLL, 16)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    variance = model(*cut(returns, starts)).cpu()
truth = true_variance[starts[:, None] + CONTEXT + torch.arange(ROLL)]
qlike = (truth / variance - (truth / variance).log() - 1).mean().item()
print(f"QLIKE against the true variance over {len(starts)} windows")
print(f"final metric: {qlike:.4f}")
