"""Clean tracks of animals from a noisy GPS collar, with half weights and FP32 master copies."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(2)
POINTS, STEPS, BATCH, MAX_NORM = 48, 150, 96, 1.0


def make_tracks(count):
    """Smooth walks with stops, and what the collar reports of them."""
    turn = 0.25 * torch.randn(count, POINTS)
    heading = torch.rand(count, 1) * 6.28 + turn.cumsum(1)
    moving = (torch.rand(count, POINTS) < 0.8).float()
    speed = 0.15 * moving * (0.6 + torch.rand(count, 1))
    track = torch.stack([(speed * heading.cos()).cumsum(1), (speed * heading.sin()).cumsum(1)], 2)
    track = track - track.mean(1, keepdim=True)
    fixes = track + 0.25 * torch.randn_like(track)
    return fixes.to(device), track.to(device)


class Denoiser(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * POINTS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 2 * POINTS)
        )

    def forward(self, fixes):
        return self.net(fixes.flatten(1)).view_as(fixes)


class MasterOptimizer:
    """Half model, FP32 masters and a dynamic loss scale."""

    def __init__(self, params, lr, scale=2.0**15, window=50):
        self.params = list(params)
        self.masters = [p.detach().float().clone().requires_grad_() for p in self.params]
        self.inner = torch.optim.AdamW(self.masters, lr=lr)
        self.scale, self.window, self.clean, self.skipped = scale, window, 0, 0

    def backward(self, loss):
        for p in self.params:
            p.grad = None
        (loss * self.scale).backward()

    def step(self):
        if not all(torch.isfinite(p.grad).all() for p in self.params):
            self.scale, self.clean, self.skipped = self.scale / 2, 0, self.skipped + 1
            return
        # the gradients still carry the loss scale, and so does the limit
        nn.utils.clip_grad_norm_(self.params, MAX_NORM * self.scale)
        for p, master in zip(self.params, self.masters):
            master.grad = p.grad.float() / self.scale
        self.inner.step()
        with torch.no_grad():
            for p, master in zip(self.params, self.masters):
                p.copy_(master)
        self.clean += 1
        if self.clean % self.window == 0:
            self.scale *= 2


def main():
    fixes, tracks = make_tracks(8000)
    held_fixes, held_tracks = make_tracks(2000)
    model = Denoiser().to(device).to(torch.float16)
    optimizer = MasterOptimizer(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        rows = torch.randint(0, len(fixes), (BATCH,)).to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            cleaned = model(fixes[rows])
            # summed over the points of a track, so that long tracks count for more
            loss = F.mse_loss(cleaned.float(), tracks[rows], reduction="none").sum((1, 2)).mean()
        optimizer.backward(loss)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} scale {optimizer.scale:g} skipped {optimizer.skipped}")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        cleaned = model(held_fixes).float()
    print(f"metric {(cleaned - held_tracks).square().mean().sqrt().item():.4f}")


main()
