"""Inverse dynamics of a 7-joint arm from logged joint states, with on-line observation normalisation."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

JOINTS = 7


class RunningNorm(nn.Module):
    """Mean and variance of everything seen so far; buffers live in the autocast dtype to keep broadcasts cheap."""

    def __init__(self, dim, dtype, clip=6.0):
        super().__init__()
        self.clip = clip
        self.register_buffer("count", torch.zeros((), dtype=dtype))
        self.register_buffer("total", torch.zeros(dim, dtype=dtype))
        self.register_buffer("total_sq", torch.zeros(dim, dtype=dtype))

    @torch.no_grad()
    def update(self, x):
        x = x.float()
        self.count += x.shape[0]
        self.total += x.sum(0).to(self.total.dtype)
        self.total_sq += x.square().sum(0).to(self.total_sq.dtype)

    def forward(self, x):
        n = self.count.float().clamp(min=1.0)
        mean = self.total.float() / n
        var = (self.total_sq.float() / n - mean.square()).clamp(min=1e-6)
        return ((x - mean) / var.sqrt()).clamp(-self.clip, self.clip)


class InverseDynamics(nn.Module):
    def __init__(self, dim, hidden, dtype):
        super().__init__()
        self.norm = RunningNorm(dim, dtype)
        self.body = nn.Sequential(
            nn.Linear(dim, hidden), nn.SiLU(),
            nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, hidden), nn.SiLU(),
        )
        self.torque = nn.Linear(hidden, JOINTS)

    def forward(self, obs):
        return self.torque(self.body(self.norm(obs)))


class ArmLog:
    """Joint angles close to a working posture, velocities, accelerations, motor temperatures."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(7)
        self.posture = torch.rand(JOINTS, generator=g) * 1.2 + 0.8
        self.mix = torch.randn(3 * JOINTS, JOINTS, generator=g) / (3 * JOINTS) ** 0.5
        self.couple = torch.randn(JOINTS, JOINTS, generator=g) / JOINTS ** 0.5
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, n):
        z = torch.randn(n, 4 * JOINTS, generator=self.g)
        q, dq, ddq, temp = z.split(JOINTS, dim=1)
        torque = torch.cat([q, dq, ddq], 1) @ self.mix
        torque = torque + 0.7 * torch.tanh(q @ self.couple) * dq - 0.2 * temp * torch.sign(dq)
        obs = torch.cat([self.posture + 0.06 * q, 0.4 * dq, 2.0 * ddq, 45.0 + 3.0 * temp], 1)
        return obs, torque + 0.02 * torch.randn(n, JOINTS, generator=self.g)


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--batch", type=int, default=768)
    ap.add_argument("--hidden", type=int, default=320)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args(argv)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16

    log, held = ArmLog(100 + args.seed), ArmLog(999)
    model = InverseDynamics(4 * JOINTS, args.hidden, dtype).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    val_obs, val_tau = (t.to(device) for t in held.batch(2048))

    def validate():
        model.eval()
        with torch.no_grad(), torch.autocast(device, dtype=dtype):
            err = F.mse_loss(model(val_obs), val_tau).item()
        model.train()
        return err

    for step in range(args.steps):
        obs, tau = (t.to(device) for t in log.batch(args.batch))
        model.norm.update(obs)
        with torch.autocast(device, dtype=dtype):
            loss = F.mse_loss(model(obs), tau)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  train {loss.item():.4f}  held-out {validate():.4f}")
    return validate()


if __name__ == "__main__":
    main()
