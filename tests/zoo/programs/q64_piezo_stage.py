"""Model the hysteresis of a piezo nano-positioning stage; saved activations are packed to fit a small card."""

import torch
from torch import nn

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
WINDOW, BATCH, TOTAL = 16, 128, 600
RANGE = 6e-8  # stroke of the stage in metres per unit of drive


def runs(n):
    """Drive voltages (normalised) of a random sweep and the displacement in metres after the last one (Bouc-Wen)."""
    speed = torch.randn(n, device=device) * 0.15
    drive, state, u = [], torch.zeros(n, device=device), 0.6 * torch.randn(n, device=device)
    for _ in range(WINDOW):
        speed = 0.9 * speed + 0.08 * torch.randn(n, device=device)
        after = (u + speed).clamp(-1.5, 1.5)
        du = after - u
        state = state + 0.8 * du - 0.9 * du.abs() * state - 0.4 * du * state.abs()
        u = after
        drive.append(u)
    return torch.stack(drive, 1), RANGE * (0.8 * u - 0.6 * state + 0.1 * u**3)


class Stage(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first = nn.Linear(2 * WINDOW - 1, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.last = nn.Linear(width, 1)

    def forward(self, drive):
        h = nn.functional.silu(self.first(torch.cat([drive, 5 * drive.diff(dim=1)], 1)))
        for block in self.blocks:
            h = h + nn.functional.silu(block(h))
        return RANGE * self.last(h).float().squeeze(1)


class Packed(torch.autograd.graph.saved_tensors_hooks):
    """Keeps in 16 bits what the backward pass needs."""

    def __init__(self, least=64):
        def pack(t):
            if isinstance(t, nn.Parameter) or t.numel() < least or not t.is_floating_point():
                return None, t
            return t.dtype, t.half()

        def unpack(kept):
            dtype, t = kept
            return t if dtype is None else t.to(dtype)

        super().__init__(pack, unpack)


stage = Stage().to(device)
optimizer = torch.optim.AdamW(stage.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=TOTAL)
scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)
for it in range(TOTAL):
    drive, moved = runs(BATCH)
    moved = moved + 0.01 * RANGE * torch.randn_like(moved)  # noise of the interferometer
    with torch.autocast("cuda", dtype=torch.float16), Packed():
        guess = stage(drive)
        loss = nn.functional.mse_loss(guess, moved) / RANGE**2
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if it % 100 == 0:
        print(f"step {it} rms error {1e9 * RANGE * loss.item() ** 0.5:.2f} nm")

with torch.no_grad():
    drive, moved = runs(4096)
    error = (stage(drive) - moved).pow(2).mean().sqrt()
    print(f"rms displacement {1e9 * moved.pow(2).mean().sqrt().item():.1f} nm")
print(f"METRIC {1e9 * error.item():.3f}")
