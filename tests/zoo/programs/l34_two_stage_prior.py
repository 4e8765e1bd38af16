"""Autoencoder and, beside it, a flow-matching prior over its codes; each has its own optimizer and loss scale."""
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LossScale:
    """Dynamic loss scale: starts high, halves when a gradient is not finite, doubles after a calm while."""

    def __init__(self, start=2.0**26, calm=100):
        self.value, self.calm, self.good, self.skipped = start, calm, 0, 0

    def step(self, loss, opt):
        params = [p for group in opt.param_groups for p in group["params"]]
        opt.zero_grad(set_to_none=True)
        (loss * self.value).backward()
        finite = all(bool(torch.isfinite(p.grad).all()) for p in params)
        if not finite:
            self.value = max(self.value / 2, 1.0)
            self.good = 0
            self.skipped += 1
            return False
        for p in params:
            p.grad.div_(self.value)
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        self.good += 1
        if self.good % self.calm == 0:
            self.value *= 2
        return True


class Autoencoder(nn.Module):
    def __init__(self, size=32, code=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(size, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, code))
        self.dec = nn.Sequential(nn.Linear(code, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, size))

    def forward(self, x):
        z = self.enc(x)
        return self.dec(z), z


class Prior(nn.Module):
    def __init__(self, code=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(code + 1, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, code))

    def forward(self, z, t):
        return self.net(torch.cat([z, t], dim=1))


def curves(n):
    t = torch.linspace(0, 1, 32)
    a, f = torch.randn(n, 1), 1 + torch.rand(n, 1)
    return (torch.sin(6.2832 * f * t + a) + 0.3 * a * t).to(device)


def main():
    torch.manual_seed(34)
    auto, prior = Autoencoder().to(device), Prior().to(device)
    opt_auto = torch.optim.Adam(auto.parameters(), lr=6e-3)
    opt_prior = torch.optim.Adam(prior.parameters(), lr=6e-3)
    scheds = [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 600) for opt in (opt_auto, opt_prior)]
    scale_auto, scale_prior = LossScale(), LossScale(start=2.0**24)
    for step in range(600):
        x = curves(256)
        with torch.autocast("cuda", dtype=torch.float16):
            out, z = auto(x)
            loss_auto = nn.functional.mse_loss(out, x) + 1e-3 * z.float().pow(2).mean()
        scale_auto.step(loss_auto, opt_auto)
        z1 = z.detach().float()
        z0, t = torch.randn_like(z1), torch.rand(len(z1), 1, device=device)
        with torch.autocast("cuda", dtype=torch.float16):
            drift = prior(t * z1 + (1 - t) * z0, t)
            loss_prior = nn.functional.mse_loss(drift, z1 - z0)
        scale_prior.step(loss_prior, opt_prior)
        for sched in scheds:
            sched.step()
        if step % 120 == 0:
            print(
                f"{step:3d} auto {loss_auto.item():.4f} (x{scale_auto.value:.0f}, {scale_auto.skipped} skipped) "
                f"prior {loss_prior.item():.3f} (x{scale_prior.value:.0f}, {scale_prior.skipped} skipped)"
            )
    x = curves(2048)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        error = nn.functional.mse_loss(auto(x)[0], x)
        z = torch.randn(1024, 4, device=device)
        for i in range(50):
            z = z + 0.02 * prior(z, torch.full((1024, 1), i / 50, device=device)).float()
        fake = auto.dec(z).float()
    print(f"spread of samples {fake.std().item():.3f}, of data {x.std().item():.3f}")
    print(f"RESULT {error.item():.5f}")


if __name__ == "__main__":
    main()
