"""Regression of next-day surface temperature from pressure-level fields; a restart half-way."""
import os
import tempfile

import numpy as np
import torch
from torch import nn

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
LEVELS = (850, 500, 300)
GEOPOTENTIAL = torch.tensor([14000.0, 54000.0, 61000.0]).view(1, 3, 1, 1)
SPREAD = torch.tensor([1100.0, 2600.0, 3300.0]).view(1, 3, 1, 1)


def era_batch(generator, n=32):
    """Geopotential in m2/s2 on three levels over an 8x8 box, and the temperature anomaly it drives."""
    coarse = torch.randn(n, 3, 2, 2, generator=generator)
    field = nn.functional.interpolate(coarse, size=8, mode="bilinear", align_corners=True)
    field = field + 0.1 * torch.randn(n, 3, 8, 8, generator=generator)
    thick = field[:, 1] - field[:, 0]
    target = 3.0 * thick.mean((1, 2)) + 1.5 * field[:, 2, :4].mean((1, 2)) - 1.5 * field[:, 2, 4:].mean((1, 2))
    return (GEOPOTENTIAL + SPREAD * field).to(device), target.to(device)


class BoxNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem_norm = nn.BatchNorm2d(len(LEVELS))
        self.conv1 = nn.Conv2d(len(LEVELS), 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 16, 1)

    def forward(self, x):
        x = self.stem_norm(x)
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.head(x.flatten(1)).squeeze(-1)


def save(path, model, step):
    arrays = {}
    for name, value in model.state_dict().items():
        arrays[name] = (value.to(torch.float16) if value.is_floating_point() else value).cpu().numpy()
    np.savez(path, step=step, **arrays)


def restore(path, model):
    with np.load(path) as arrays:
        state = {name: torch.from_numpy(np.array(arrays[name])).to(device) for name in arrays.files if name != "step"}
        model.load_state_dict(state)
        return int(arrays["step"])


def fit(model, optimizer, generator, first, last):
    scaler = torch.amp.GradScaler("cuda")
    model.train()
    for step in range(first, last):
        fields, target = era_batch(generator)
        with torch.autocast("cuda", dtype=torch.float16):
            prediction = model(fields)
            loss = nn.functional.mse_loss(prediction, target)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 25 == 0:
            print(f"step {step:4d} train mse {loss.item():.4f}")


def main():
    generator = torch.Generator().manual_seed(11)
    validation = [era_batch(torch.Generator().manual_seed(900 + i)) for i in range(4)]

    def build():
        net = BoxNet().to(device)
        return net, torch.optim.Adam(net.parameters(), lr=3e-3)

    model, optimizer = build()
    fit(model, optimizer, generator, 0, 100)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "boxnet.npz")
        save(path, model, 100)
        print(f"wrote {os.path.getsize(path) // 1024} KiB")
        model, optimizer = build()
        start = restore(path, model)
    fit(model, optimizer, generator, start, 200)

    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        error = sum((model(x) - y).float().pow(2).mean().item() for x, y in validation) / len(validation)
        power = sum(y.pow(2).mean().item() for _, y in validation) / len(validation)
    print(f"validation mse {error:.4f}  explained {1 - error / power:.3f}")


if __name__ == "__main__":
    main()
