"""Density of an eight-column table with a coupling flow; weights live in bfloat16, updates are summed with compensation."""
import math

import torch
from torch import nn

DIM = 8


class KahanAdamW(torch.optim.Optimizer):
    """AdamW for bfloat16 weights. What a weight cannot hold of an update is kept and added to the next one."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=1e-4):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

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
                    s["m"] = torch.zeros_like(p, dtype=torch.float32)
                    s["v"] = torch.zeros_like(p, dtype=torch.float32)
                    s["rest"] = torch.zeros_like(p)
                s["t"] += 1
                g = p.grad.float()
                s["m"].lerp_(g, 1 - b1)
                s["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                mhat = s["m"] / (1 - b1 ** s["t"])
                vhat = s["v"] / (1 - b2 ** s["t"])
                update = -group["lr"] * (mhat / (vhat.sqrt() + group["eps"]) + group["weight_decay"] * p.float())
                total = s["rest"].float() + update
                before = p.float().clone()
                p.copy_(before + total)
                s["rest"].copy_(total - (p.float() - before))


class Coupling(nn.Module):
    def __init__(self, mask, width=64):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(
            nn.Linear(DIM, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * DIM)
        )

    def forward(self, x):
        held = x * self.mask
        shift, log_scale = self.net(held.to(self.net[0].weight.dtype)).float().chunk(2, -1)
        free = 1 - self.mask
        log_scale = 2 * torch.tanh(log_scale / 2) * free
        return held + free * (x * log_scale.exp() + shift), log_scale.sum(-1)


class Flow(nn.Module):
    def __init__(self, layers=5):
        super().__init__()
        masks = [(torch.arange(DIM) // (1 + i // 2 % 3) + i) % 2 for i in range(layers)]
        self.layers = nn.ModuleList(Coupling(m.float()) for m in masks)

    def log_prob(self, x):
        logdet = torch.zeros(x.shape[0], device=x.device)
        for layer in self.layers:
            x, ld = layer(x)
            logdet = logdet + ld
        return -0.5 * (x ** 2).sum(-1) - 0.5 * DIM * math.log(2 * math.pi) + logdet


def table(n, gen):
    """Columns that depend on each other in bent ways."""
    z = torch.randn(n, DIM, generator=gen)
    x = z.clone()
    x[:, 1] = 0.4 * z[:, 1] + 0.5 * z[:, 0] ** 2 - 0.5
    x[:, 2] = 0.5 * z[:, 2] * torch.exp(0.4 * z[:, 0])
    x[:, 3] = torch.sin(1.5 * z[:, 0]) + 0.3 * z[:, 3]
    x[:, 5] = 0.7 * z[:, 4] + 0.3 * z[:, 5]
    x[:, 7] = z[:, 6].abs() - 0.8 + 0.3 * z[:, 7]
    return x


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(31)
    flow = Flow().to(device)
    for layer in flow.layers:
        layer.net.to(torch.bfloat16)
    opt = KahanAdamW(flow.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 240, eta_min=1e-5)
    for step in range(240):
        x = table(512, gen).to(device)
        opt.zero_grad()
        loss = -flow.log_prob(x).mean()
        loss.backward()
        opt.step()
        sched.step()
        if step % 40 == 0:
            print(f"step {step:3d} nll {loss.item():.4f}")
    with torch.no_grad():
        x = table(4000, torch.Generator().manual_seed(32)).to(device)
        print(f"final test nll {-flow.log_prob(x).mean().item():.4f}")


if __name__ == "__main__":
    main()
