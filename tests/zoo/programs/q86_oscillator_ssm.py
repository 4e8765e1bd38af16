"""Latent world model with a gated diagonal recurrence (HGRN/Mamba style), for open-loop planning on a damped oscillator.

The scan does not keep its states: they are run backwards from the last one, as in reversible networks.
"""
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, LATENT, BATCH, STEPS = 64, 48, 64, 500


def simulate(n):
    """Two coupled masses; the observation is a nonlinear reading of the first one, the action a force."""
    q, p = torch.randn(n, 2, device=device), torch.randn(n, 2, device=device)
    force = torch.randn(n, LENGTH, device=device)
    force = 0.6 * force + 0.8 * torch.cumsum(force, 1) / torch.arange(1, LENGTH + 1, device=device).sqrt()
    obs = []
    for t in range(LENGTH):
        spring = torch.stack([-2 * q[:, 0] + q[:, 1], q[:, 0] - 2 * q[:, 1]], 1)
        p = p + 0.15 * (spring - 0.5 * p)
        p = torch.stack([p[:, 0], p[:, 1] + 0.3 * force[:, t]], 1)
        q = q + 0.15 * p
        obs.append(torch.stack([torch.sin(q[:, 0]), p[:, 0]], 1))
    return force.unsqueeze(-1), torch.stack(obs, 1)


class ReversibleScan(torch.autograd.Function):
    """h_t = a_t * h_{t-1} + x_t; of the states only the last one is kept for the backward pass."""

    @staticmethod
    def forward(ctx, x, a):
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            out.append(h)
        ctx.save_for_backward(x, a, h)
        return torch.stack(out, 1)

    @staticmethod
    def backward(ctx, grad_out):
        x, a, h = ctx.saved_tensors
        grad_x, grad_a, carry = torch.empty_like(x), torch.empty_like(a), torch.zeros_like(h)
        for t in reversed(range(x.shape[1])):
            carry = carry + grad_out[:, t]
            h = (h - x[:, t]) / a[:, t]
            grad_x[:, t], grad_a[:, t] = carry, carry * h
            carry = carry * a[:, t]
        return grad_x, grad_a


class Layer(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.encode = nn.Linear(inputs, LATENT)
        self.gate = nn.Linear(inputs, LATENT)
        self.mix = nn.Sequential(nn.Linear(LATENT, LATENT), nn.GELU(), nn.Linear(LATENT, LATENT))

    def forward(self, u):
        x = self.encode(u)
        a = 0.8 + 0.2 * torch.sigmoid(self.gate(u) - 1)
        return self.mix(ReversibleScan.apply(x, a))


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(1 + 2), Layer(LATENT)])
        self.decode = nn.Linear(LATENT, 2)

    def forward(self, first_obs, force):
        start = torch.zeros(*force.shape[:2], 2, device=force.device)
        start[:, 0] = first_obs
        h = torch.cat([force, start], -1)
        for layer in self.layers:
            h = layer(h)
        return self.decode(h)


model = WorldModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=STEPS)
for step in range(STEPS):
    force, obs = simulate(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(obs[:, 0], force)[:, 1:], obs[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f} grad norm {grad_norm.item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    force, obs = simulate(512)
    error = nn.functional.mse_loss(model(obs[:, 0], force)[:, 1:], obs[:, 1:])
print("METRIC", error.item())
