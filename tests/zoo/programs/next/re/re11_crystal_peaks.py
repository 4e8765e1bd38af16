"""Lattice spacing from a powder diffraction pattern: half weights, FP32 masters, a constant loss scale."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(83)
BINS, STEPS, BATCH, LOSS_SCALE, MAX_NORM = 80, 180, 128, 128.0, 2.0


def make_patterns(count):
    """Patterns of three lines whose places follow from the spacing and a cell distortion."""
    spacing = torch.rand(count, 1)
    skew = torch.rand(count, 1)
    angle = torch.linspace(0, 1, BINS)
    pattern = torch.zeros(count, BINS)
    for order, weight in ((1, 1.0), (2, 0.6), (3, 0.4)):
        place = order * (0.12 + 0.15 * spacing) + 0.08 * skew * (order - 1)
        pattern += weight * torch.exp(-((angle - place) ** 2) / (2 * 0.02**2))
    pattern += 0.03 * torch.randn(count, BINS)
    return pattern.to(device), torch.cat([spacing, skew], 1).to(device)


def copy_gradients(params, masters):
    """Take the scaled half gradients over to the masters and unscale them there."""
    for p, master in zip(params, masters):
        master.grad = p.grad.float().div_(LOSS_SCALE)
        p.grad = None


def main():
    patterns, cells = make_patterns(5000)
    held_patterns, held_cells = make_patterns(2000)
    model = nn.Sequential(
        nn.Linear(BINS, 128), nn.SiLU(), nn.Linear(128, 64), nn.SiLU(), nn.Linear(64, 2)
    ).to(device)
    params = list(model.parameters())
    masters = [p.detach().clone().requires_grad_() for p in params]
    model.to(torch.float16)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(masters, lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    skipped = 0
    for step in range(STEPS):
        rows = torch.randint(0, len(patterns), (BATCH,)).to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            guess = model(patterns[rows])
            loss = F.mse_loss(guess.float(), cells[rows])
        (loss * LOSS_SCALE).backward()
        copy_gradients(params, masters)
        norm = nn.utils.clip_grad_norm_(masters, MAX_NORM)
        if torch.isfinite(norm):
            optimizer.step()
            with torch.no_grad():
                for p, master in zip(params, masters):
                    p.copy_(master)
        else:
            skipped += 1
        schedule.step()
        if step % 60 == 0:
            print(f"step {step} loss {loss.item():.5f} norm {norm.item():.3f} skipped {skipped}")
    print(f"skipped {skipped}")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        guess = model(held_patterns).float()
    print(f"metric {(guess - held_cells).square().mean().sqrt().item():.4f}")


main()
