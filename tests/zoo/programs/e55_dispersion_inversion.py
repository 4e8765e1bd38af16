"""Shear-velocity profiles from surface-wave dispersion curves; half-precision network, single-precision master weights."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(21)

PERIODS, LAYERS = 40, 12
LOSS_SCALE, MAX_NORM = 4096.0, 10.0


def dispersion_set(n):
    """Layered profiles (km/s) and the phase velocities that an averaging kernel makes of them."""
    depth = torch.linspace(0, 1, LAYERS)
    vs = 2.6 + 1.6 * torch.rand(n, 1) * depth + 0.5 * torch.rand(n, 1)
    vs = vs + 0.25 * torch.sin(6.3 * (depth + torch.rand(n, 1)))
    centre = torch.linspace(0.0, 1.0, PERIODS)[:, None]
    kernel = torch.exp(-((depth - centre) / 0.15) ** 2)
    kernel = kernel / kernel.sum(1, keepdim=True)
    return 0.92 * vs @ kernel.T + 0.01 * torch.randn(n, PERIODS), vs


class ProfileNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.inp = nn.Linear(PERIODS, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, LAYERS)

    def forward(self, c):
        h = F.relu(self.inp((c - 3.0) * 2.0))
        h = h + F.relu(self.mid(h))
        return self.out(h)


class MasterWeights:
    """Single-precision copies of the half-precision weights, for the optimizer."""

    def __init__(self, model):
        self.half = list(model.parameters())
        self.full = [p.detach().clone().float().requires_grad_() for p in self.half]

    def take_gradients(self):
        for h, f in zip(self.half, self.full):
            f.grad = h.grad.float() / LOSS_SCALE

    def give_weights(self):
        with torch.no_grad():
            for h, f in zip(self.half, self.full):
                h.copy_(f)


def main():
    curves, profiles = dispersion_set(4000)
    model = ProfileNet().to(device).half()
    masters = MasterWeights(model)
    opt = torch.optim.AdamW(masters.full, lr=2e-3, weight_decay=1e-4)
    losses, skipped = [], 0
    for step in range(300):
        idx = torch.randint(0, len(curves), (64,))
        c, vs = curves[idx].to(device).half(), profiles[idx].to(device)
        misfit = (model(c).float() - vs).pow(2).sum(1).mean()
        model.zero_grad(set_to_none=True)
        (misfit * LOSS_SCALE).backward()
        if not all(p.grad.isfinite().all() for p in model.parameters()):
            skipped += 1
            continue
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM * LOSS_SCALE)
        masters.take_gradients()
        opt.step()
        masters.give_weights()
        losses.append(misfit.item())
        if step % 50 == 0:
            print(f"step {step:3d}  misfit {losses[-1]:8.3f}")
    with torch.no_grad():
        test_c, test_vs = dispersion_set(500)
        err = (model(test_c.to(device).half()).float().cpu() - test_vs).abs().mean().item()
    print(f"last misfit {losses[-1]:.3f}  held-out error {1000 * err:.0f} m/s  skipped {skipped}")
    return model, losses, err


if __name__ == "__main__":
    model, losses, err = main()
