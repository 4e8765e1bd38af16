"""Denoising of short MRI line profiles on spot instances: the job is stopped and resumed every few steps."""

import io

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

LENGTH, BATCH = 64, 32
SLICES, STEPS_PER_SLICE = 25, 8


def profiles(n):
    """Piecewise smooth lines through tissue, with noise."""
    grid = torch.linspace(0, 1, LENGTH)
    clean = torch.zeros(n, LENGTH)
    for _ in range(4):
        centre, width = torch.rand(n, 1), 0.03 + 0.12 * torch.rand(n, 1)
        height = torch.rand(n, 1) * 8
        clean += height * torch.sigmoid((width - (grid - centre).abs()) * 80)
    return (clean + 2 * torch.randn(n, LENGTH)).unsqueeze(1).to(device), clean.unsqueeze(1).to(device)


class Denoiser(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 7, padding=3),
            nn.ReLU(),
            nn.Conv1d(width, width, 7, padding=3),
            nn.ReLU(),
            nn.Conv1d(width, width, 7, padding=3),
            nn.ReLU(),
            nn.Conv1d(width, 1, 7, padding=3),
        )

    def forward(self, noisy):
        return self.net(noisy)


def energy_loss(output, clean):
    """Squared error summed over the line and over the batch, as in the reference implementation."""
    return nn.functional.mse_loss(output, clean, reduction="sum")


def save_job(model, optimizer, step):
    buffer = io.BytesIO()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
        },
        buffer,
    )
    return buffer.getvalue()


def run_slice(saved, n_steps):
    """What one spot instance does between its start and its notice of termination."""
    model = Denoiser().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cuda")
    step = 0
    if saved is not None:
        state = torch.load(io.BytesIO(saved), map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    for _ in range(n_steps):
        noisy, clean = profiles(BATCH)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = energy_loss(model(noisy), clean)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        step += 1
    print(f"step {step} loss {loss.item() / BATCH / LENGTH:.4f}")
    return save_job(model, optimizer, step)


saved = None
for _ in range(SLICES):
    saved = run_slice(saved, STEPS_PER_SLICE)

model = Denoiser().to(device)
model.load_state_dict(torch.load(io.BytesIO(saved), map_location=device)["model"])
torch.manual_seed(77)
noisy, clean = profiles(512)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    rmse = (model(noisy).float() - clean).square().mean().sqrt()
print(f"metric {rmse.item():.5f}")
