"""Surface currents from drifting buoys: a field is learned through integrated tracks, leg by leg, with recomputation."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

ORIGIN, EXTENT, DT = 2100.0, 200.0, 1.0


class CurrentField(nn.Module):
    """Horizontal velocity at a position given in metres (northing, easting)."""

    def __init__(self, features, hidden):
        super().__init__()
        angle = torch.rand(features) * 2 * math.pi
        wave = 2 * math.pi / (35.0 + 80.0 * torch.rand(features))
        self.register_buffer("k", torch.stack([angle.cos() * wave, angle.sin() * wave]))
        self.mlp = nn.Sequential(nn.Linear(2 * features, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, 2))

    def forward(self, pos):
        phase = (pos[:, :, None] * self.k).sum(1)
        return self.mlp(torch.cat([phase.sin(), phase.cos()], 1)).float()


class Leg(torch.autograd.Function):
    """A few integration steps; only the starting point is kept and the leg is walked again in backward."""

    @staticmethod
    def forward(ctx, pos, walk, device, dtype, *params):
        end = walk(pos)
        ctx.walk, ctx.device, ctx.dtype, ctx.params = walk, device, dtype, params
        ctx.save_for_backward(pos.to(dtype))
        return end

    @staticmethod
    def backward(ctx, grad_end):
        start = ctx.saved_tensors[0].detach().float().requires_grad_()
        with torch.enable_grad(), torch.autocast(ctx.device, dtype=ctx.dtype):
            end = ctx.walk(start)
        grad_start, *grads = torch.autograd.grad(end, (start, *ctx.params), grad_end)
        return (grad_start, None, None, None, *grads)


class Tracker:
    def __init__(self, field, legs, substeps, device, dtype):
        self.field, self.legs, self.substeps, self.device, self.dtype = field, legs, substeps, device, dtype

    def walk(self, pos):
        for _ in range(self.substeps):
            pos = pos + DT * self.field(pos)
        return pos

    def __call__(self, pos):
        fixes = []
        for _ in range(self.legs):
            pos = Leg.apply(pos, self.walk, self.device, self.dtype, *self.field.parameters())
            fixes.append(pos)
        return torch.stack(fixes, 1)


class Ocean:
    def __init__(self, legs, substeps):
        g = torch.Generator().manual_seed(4)
        angle = torch.rand(6, generator=g) * 2 * math.pi
        self.wave = 2 * math.pi / (40.0 + 60.0 * torch.rand(6, generator=g))
        self.k = torch.stack([angle.cos(), angle.sin()]) * self.wave
        self.turn = torch.stack([-angle.sin(), angle.cos()], 1)
        self.phase = torch.rand(6, generator=g) * 2 * math.pi
        self.legs, self.substeps = legs, substeps

    def tracks(self, n, g, noise=0.1):
        start = pos = ORIGIN + EXTENT * torch.rand(n, 2, generator=g)
        fixes = []
        for _ in range(self.legs):
            for _ in range(self.substeps):
                pos = pos + DT * 0.6 * torch.sin((pos - ORIGIN) @ self.k + self.phase) @ self.turn
            fixes.append(pos + noise * torch.randn(n, 2, generator=g))
        return start, torch.stack(fixes, 1)


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=250)
    ap.add_argument("--batch", type=int, default=384)
    ap.add_argument("--legs", type=int, default=3)
    ap.add_argument("--substeps", type=int, default=3)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args(argv)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16

    ocean = Ocean(args.legs, args.substeps)
    g = torch.Generator().manual_seed(1000 + args.seed)
    held = [t.to(device) for t in ocean.tracks(1024, torch.Generator().manual_seed(5), noise=0.0)]
    field = CurrentField(64, args.hidden).to(device)
    track = Tracker(field, args.legs, args.substeps, device, dtype)
    opt = torch.optim.AdamW(field.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)

    for step in range(args.steps):
        start, fixes = (t.to(device) for t in ocean.tracks(args.batch, g))
        with torch.autocast(device, dtype=dtype):
            loss = F.mse_loss(track(start), fixes)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(field.parameters(), 10.0)
        opt.step()
        sched.step()
        if step % 50 == 0 or step == args.steps - 1:
            with torch.no_grad(), torch.autocast(device, dtype=dtype):
                miss = (track(held[0]) - held[1]).norm(dim=-1).mean().item()
            print(f"step {step:4d}  loss {loss.item():.4f}  held-out miss {miss:.3f} m")
    return miss


if __name__ == "__main__":
    main()
