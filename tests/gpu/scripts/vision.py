"""A small CNN in fp16 with a GradScaler that starts too high: the first steps are skipped."""

import torch
from torch import nn
from torch.nn import functional

torch.use_deterministic_algorithms(mode=True)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64),
    nn.ReLU(), nn.Flatten(), nn.Linear(64 * 64, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scaler = torch.amp.GradScaler(device, init_scale=2.0**26, growth_interval=20)
images, labels = torch.randn(256, 3, 16, 16), torch.arange(256) % 10

for step in range(60):
    rows = torch.arange(32) + 32 * (step % 8)
    x, y = images[rows].to(device), labels[rows].to(device)
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():.0f}")
