"""Denoises iodine maps of dual-energy CT (g/ml); the network is split over two stages with threads of their own."""

import queue
import threading

import torch
from torch import nn

torch.manual_seed(6)
device = "cuda" if torch.cuda.is_available() else "cpu"
SIZE, MICRO, PER_STEP, STEPS = 40, 8, 2, 300
DENSITY = 0.003  # g/ml of iodine in an enhanced organ
grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij"))


def maps_of(n):
    """Phantoms of some enhanced ellipses, and the noisy maps that the decomposition gives."""
    clean = torch.zeros(n, 1, SIZE, SIZE)
    for _ in range(7):
        centre, axes = torch.rand(n, 2, 1, 1) * 1.4 - 0.7, torch.rand(n, 2, 1, 1) * 0.4 + 0.12
        inside = ((grid[None] - centre) / axes).pow(2).sum(1, keepdim=True) < 1
        tissue = DENSITY * (0.4 + 1.2 * torch.rand(n, 1, 1, 1))
        clean = torch.where(inside, tissue, clean)
    noise = nn.functional.avg_pool2d(torch.randn(n, 1, SIZE, SIZE), 2, 1, padding=1)[..., :SIZE, :SIZE]
    noisy = clean + 0.6 * DENSITY * (0.5 + clean / DENSITY) * noise
    return noisy.to(device), clean.to(device)


def block(inputs, outputs, kernel):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.GroupNorm(4, outputs), nn.ReLU())


stage1 = nn.Sequential(block(1, 16, 5), block(16, 16, 5), block(16, 4, 3)).to(device)
stage2 = nn.Sequential(nn.Conv2d(4, 24, 1), nn.ReLU(), nn.Conv2d(24, 1, 1)).to(device)
link_up, link_down, losses = queue.Queue(1), queue.Queue(1), []
LINK = torch.float16  # what goes over the wire, either way


def first_stage(noisy):
    optimizer = torch.optim.Adam(stage1.parameters(), lr=3e-3)
    order = torch.Generator().manual_seed(60)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(PER_STEP):
            rows = torch.randint(0, len(noisy), (MICRO,), generator=order)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                features = stage1(noisy[rows] / DENSITY)
            link_up.put((rows, features.detach().to(LINK)))
            features.backward(link_down.get().to(features.dtype))
        optimizer.step()


def second_stage(clean):
    optimizer = torch.optim.Adam(stage2.parameters(), lr=3e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(PER_STEP):
            rows, features = link_up.get()
            features = features.float().requires_grad_()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(stage2(features) * DENSITY, clean[rows]) / PER_STEP
            loss.backward()
            losses.append(loss.item() * PER_STEP)
            link_down.put(features.grad.to(LINK))
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} error {losses[-1] ** 0.5 / DENSITY:.4f}", flush=True)


noisy, clean = maps_of(384)
test_noisy, test_clean = maps_of(96)
stages = [threading.Thread(target=first_stage, args=(noisy,)), threading.Thread(target=second_stage, args=(clean,))]
for stage in stages:
    stage.start()
for stage in stages:
    stage.join()

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    error = (stage2(stage1(test_noisy / DENSITY)).float() * DENSITY - test_clean).pow(2).mean().sqrt()
print(f"METRIC {error.item() / DENSITY:.4f}")
