"""Message passing on small molecular graphs (regression of an energy) with a memory-lean Adam."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.float16
ATOMS, TYPES, BATCH, STEPS = 12, 5, 48, 160

charge = torch.tensor([-0.8, -0.3, 0.1, 0.5, 0.9])


def molecules(n):
    kind = torch.randint(0, TYPES, (n, ATOMS))
    bonds = (torch.rand(n, ATOMS, ATOMS) < 0.22).float().triu(1)
    bonds = bonds + bonds.transpose(1, 2)
    q = charge[kind]
    energy = torch.einsum("bi,bij,bj->b", q, bonds, q) + 0.3 * (bonds.sum(2) - 2.5).clamp(min=0).sum(1)
    return kind.to(device), bonds.to(device), (0.5 * energy).to(device)


class MessagePassing(nn.Module):
    def __init__(self, width=32, rounds=2):
        super().__init__()
        self.embed = nn.Embedding(TYPES, width)
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(rounds))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, kind, bonds):
        h = self.embed(kind)
        for message, norm in zip(self.message, self.norm):
            incoming = torch.bmm(bonds, h)
            h = norm(h + F.silu(message(torch.cat([h, incoming], dim=-1))))
        return self.readout(h).squeeze(-1).sum(1)


class LeanAdam(torch.optim.Optimizer):
    """Adam whose moments take half of the memory; the arithmetic is done in single precision."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p, dtype=torch.float16)
                    state["v"] = torch.zeros_like(p, dtype=torch.float16)
                state["step"] += 1
                m = state["m"].float().lerp_(p.grad, 1 - b1)
                v = state["v"].float().mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                state["m"].copy_(m)
                state["v"].copy_(v)
                m_hat = state["m"].float() / (1 - b1 ** state["step"])
                v_hat = state["v"].float() / (1 - b2 ** state["step"])
                p.addcdiv_(m_hat, v_hat.sqrt_().add_(group["eps"]), value=-group["lr"])


model = MessagePassing().to(device)
optimizer = LeanAdam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)

for step in range(STEPS):
    kind, bonds, energy = molecules(BATCH)
    for group in optimizer.param_groups:
        group["lr"] = 2e-3 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        loss = F.mse_loss(model(kind, bonds), energy)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 49:
        print(f"step {step + 1} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

kind, bonds, energy = molecules(1024)
with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
    pred = model(kind, bonds)
print(f"metric {(pred.float() - energy).pow(2).mean().sqrt().item():.4f}")
