"""Fits lift to wall pressures of a wind tunnel; the best weights on held-out runs are kept."""

import copy

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
TAPS, STEPS, EVERY = 16, 160, 10


class Tunnel:
    """Pressure taps in Pa around 1 bar, lift in N."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.modes = torch.randn(3, TAPS, generator=self.gen)

    def runs(self, n):
        state = torch.randn(n, 3, generator=self.gen)
        pressure = 98000.0 + 700.0 * (state @ self.modes) + 5.0 * torch.randn(n, TAPS, generator=self.gen)
        lift = 2.0 * state[:, 0] + torch.tanh(state[:, 1] * state[:, 2])
        return pressure.to(device), lift.to(device)


class LiftNet(nn.Module):
    def __init__(self, pressure):
        super().__init__()
        self.register_buffer("mean", pressure.mean(0))
        self.register_buffer("std", pressure.std(0))
        self.net = nn.Sequential(
            nn.Linear(TAPS, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )

    def forward(self, pressure):
        return self.net((pressure - self.mean) / self.std).squeeze(-1)


@torch.inference_mode()
def validate(model, pressure, lift):
    """Mean squared error, in half precision as in the real-time controller."""
    fast = copy.deepcopy(model).half().eval()
    return (fast(pressure.half()).float() - lift).pow(2).mean().item()


def fit(model, tunnel):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    held = tunnel.runs(256)
    best, kept = float("inf"), copy.deepcopy(model.state_dict())
    for step in range(STEPS):
        pressure, lift = tunnel.runs(64)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(pressure), lift)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if (step + 1) % EVERY == 0:
            score = validate(model, *held)
            if score < best:
                best, kept = score, copy.deepcopy(model.state_dict())
            if (step + 1) % 40 == 0:
                print(f"step {step + 1} train {loss.item():.4f} best {best:.4f}")
    model.load_state_dict(kept)
    return model


def main():
    torch.manual_seed(30)
    tunnel = Tunnel(30)
    model = LiftNet(tunnel.runs(512)[0]).to(device)
    fit(model, tunnel)
    pressure, lift = tunnel.runs(1000)
    with torch.no_grad():
        error = (model(pressure) - lift).pow(2).mean()
    print("metric", round(error.item(), 4))


if __name__ == "__main__":
    main()
