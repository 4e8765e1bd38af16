"""ECG denoising on preemptible machines: training goes in shifts, each resumes from a compact snapshot."""
import io
import math

import torch
from torch import nn

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
SAMPLES, SHIFTS, STEPS, BATCH = 128, 6, 25, 96


def heartbeats(count):
    """Clean beats in mV, and as recorded with mains hum and muscle noise."""
    grid = torch.linspace(0, 1, SAMPLES)
    centre = 0.4 + 0.2 * torch.rand(count, 1)
    height = 0.8 + 0.4 * torch.rand(count, 1)
    beat = height * torch.exp(-((grid - centre) / 0.02) ** 2)
    beat += 0.15 * torch.exp(-((grid - centre + 0.17) / 0.03) ** 2)
    beat += 0.3 * torch.exp(-((grid - centre - 0.25) / 0.05) ** 2)
    hum = 0.2 * torch.sin(2 * math.pi * (12 * grid + torch.rand(count, 1)))
    return beat.to(device), (beat + hum + 0.1 * torch.randn(count, SAMPLES)).to(device)


def build():
    model = nn.Sequential(
        nn.Linear(SAMPLES, 128), nn.LayerNorm(128), nn.GELU(),
        nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, SAMPLES),
    ).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.amp.GradScaler("cuda")


def convert(tree, change):
    """Apply a change to all floating tensors in nested dicts and lists."""
    if isinstance(tree, dict):
        return {key: convert(value, change) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(convert(value, change) for value in tree)
    return change(tree) if torch.is_tensor(tree) and tree.is_floating_point() else tree


def snapshot(model, optimizer, scaler):
    """Everything that the next shift needs; small, as it goes through the slow object store."""
    buffer = io.BytesIO()
    state = {
        "model": convert(model.state_dict(), torch.Tensor.half),
        "optimizer": convert(optimizer.state_dict(), torch.Tensor.half),
        "scaler": scaler.state_dict(),
    }
    torch.save(state, buffer)
    return buffer.getvalue()


def resume(data):
    model, optimizer, scaler = build()
    state = torch.load(io.BytesIO(data), map_location=device)
    model.load_state_dict(convert(state["model"], torch.Tensor.float))
    optimizer.load_state_dict(convert(state["optimizer"], torch.Tensor.float))
    scaler.load_state_dict(state["scaler"])
    return model, optimizer, scaler


clean, noisy = heartbeats(4096)
test_clean, test_noisy = heartbeats(1024)
saved = snapshot(*build())
for shift in range(SHIFTS):
    model, optimizer, scaler = resume(saved)
    for step in range(STEPS):
        rows = torch.randint(0, len(clean), (BATCH,)).to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(noisy[rows]), clean[rows])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    saved = snapshot(model, optimizer, scaler)

model, _, _ = resume(saved)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(test_noisy).float() - test_clean).square().mean().sqrt()
print("metric", round(1000 * error.item(), 2))  # uV
