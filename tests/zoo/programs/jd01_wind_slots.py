"""Short-term forecast of turbine output, trained in the gaps between other jobs on a shared card."""
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
HISTORY, HORIZON, BATCH = 24, 6, 64
SLOTS, STEPS_PER_SLOT = 14, 10


def make_turbines(count, rng):
    base = rng.uniform(4, 12, (count, 1))
    slope = rng.normal(0, 0.12, (count, 1))
    phase = rng.uniform(0, 6.28, (count, 1))
    hours = np.arange(HISTORY + HORIZON)
    wind = base + slope * hours + 1.5 * np.sin(hours * 0.5 + phase) + rng.normal(0, 0.2, (count, len(hours)))
    power = 2000 / (1 + np.exp(-(wind - 9) * 0.7))
    x = torch.tensor((wind[:, :HISTORY] - 8) / 4, dtype=torch.float32)
    return x, torch.tensor(power[:, HISTORY:], dtype=torch.float32)


class Forecaster(nn.Module):
    def __init__(self, rated=2000.0):
        super().__init__()
        self.rated = rated
        self.net = nn.Sequential(nn.Linear(HISTORY, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, HORIZON))

    def forward(self, x):
        return self.net(x).float() * self.rated


def save(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)


def run_slot(path, x, y):
    model = Forecaster().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cuda")
    step = 0
    if os.path.exists(path):
        state = torch.load(path, map_location=device, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    for _ in range(STEPS_PER_SLOT):
        pick = torch.randint(0, len(x), (BATCH,))
        xb, yb = x[pick].to(device), y[pick].to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.smooth_l1_loss(model(xb), yb, beta=50.0, reduction="none").sum(1).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 500.0)
        scaler.step(optimizer)
        scaler.update()
        step += 1
    save(path, model, optimizer, step)
    return model, step, loss.item()


def main():
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    x, y = make_turbines(2000, rng)
    x_test, y_test = make_turbines(500, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "wind.pt")
        for slot in range(SLOTS):
            model, step, loss = run_slot(path, x, y)
            print(f"slot {slot} step {step} loss {loss:.1f}")
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        mae = (model(x_test.to(device)) - y_test.to(device)).abs().mean().item()
    print(f"metric {mae:.2f}")


if __name__ == "__main__":
    main()
