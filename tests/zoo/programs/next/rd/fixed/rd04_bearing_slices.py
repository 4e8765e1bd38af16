"""Remaining life of bearings from vibration bands. The queue gives the job short slices; each one resumes in memory."""
import io
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
BANDS, BATCH, SLICES, SLICE_STEPS = 40, 128, 36, 8


class LifeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(BANDS)
        self.body = nn.Sequential(nn.Linear(BANDS, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU())
        self.head = nn.Linear(96, 1)

    def forward(self, spectrum):
        return self.head(self.body(self.norm(spectrum))).squeeze(-1)


centre = torch.linspace(0, 1, BANDS)
fault = torch.tensor([0.22, 0.47, 0.71])


def measured(n):
    """Log band levels of bearings, and the days that are left, in units of ten days."""
    wear, kind, speed = torch.rand(n, 1), torch.randint(0, 3, (n,)), 0.9 + 0.2 * torch.rand(n, 1)
    peak = torch.exp(-((centre - fault[kind].unsqueeze(1) * speed) / 0.03) ** 2)
    floor = 0.5 * wear**2 + 0.3 * torch.sin(5 * centre + 3 * speed)
    spectrum = floor + 2 * wear**1.5 * peak + 0.05 * torch.randn(n, BANDS)
    days = 6 * (1 - wear.squeeze(1)) * (1 + 0.3 * (kind - 1).float())
    return spectrum.to(device), days.to(device)


def objects():
    model = LifeNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=1e-3)
    return model, optimizer


def checkpoint(model, optimizer, step, scaler):
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                "scaler": scaler.state_dict()}, buffer)
    return buffer.getvalue()


def run_slice(saved):
    model, optimizer = objects()
    scaler = torch.amp.GradScaler("cuda")
    state = torch.load(io.BytesIO(saved), map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    step = state["step"]
    for _ in range(SLICE_STEPS):
        spectrum, days = measured(BATCH)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(spectrum), days, reduction="sum")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 50.0)
        scaler.step(optimizer)
        scaler.update()
        step += 1
    return checkpoint(model, optimizer, step, scaler), loss.item() / BATCH


saved = checkpoint(*objects(), 0, torch.amp.GradScaler("cuda"))
for number in range(SLICES):
    saved, loss = run_slice(saved)
    if number % 6 == 5:
        print(f"slice {number + 1}: loss {loss:.4f}")

model, _ = objects()
model.load_state_dict(torch.load(io.BytesIO(saved), map_location=device, weights_only=True)["model"])
model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    spectrum, days = measured(8000)
    error = (model(spectrum).float() - days).abs().mean().item()
print(f"metric {error:.4f}")
