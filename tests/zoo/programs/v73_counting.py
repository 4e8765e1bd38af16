"""Crowd counting by density maps: sums over the map are compared with the number of blobs."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FACTOR = 100.0


def make_batch(generator, count=8, size=16):
    """Images of several blobs and the density that adds up to their number."""
    axis = torch.arange(size).float()
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    density = torch.zeros(count, 1, size, size)
    for i in range(count):
        for _ in range(int(torch.randint(1, 7, (1,), generator=generator))):
            cy, cx = (2 + (size - 4) * torch.rand(2, generator=generator)).tolist()
            blob = torch.exp(-((y - cy) ** 2 + (x - cx) ** 2) / 3.0)
            density[i, 0] += blob / blob.sum()
    image = density * 10 + 0.05 * torch.randn(density.shape, generator=generator)
    return image.to(device), density.to(device)


class DensityNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, width)
        self.leave = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        h = F.relu(self.enter(x))
        h = h + F.relu(self.norm(self.middle(h)))
        return self.leave(h)


class Averaged:
    """A slow copy of the weights for the test."""

    def __init__(self, model, decay=0.9):
        self.decay = decay
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.values[name].lerp_(p, 1 - self.decay)


def counting_error(model, generator, weights):
    image, density = make_batch(generator, 64)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        output = torch.func.functional_call(model, weights, (image,))
    found = output.sum((1, 2, 3), dtype=torch.float32) / FACTOR
    return (found - density.sum((1, 2, 3))).abs().mean().item()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(8)
    model = DensityNet().to(device)
    averaged = Averaged(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20, (80 - step) / 40))
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14)
    recent = []
    for step in range(80):
        image, density = make_batch(generator)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(image)
            loss = F.mse_loss(output, density * FACTOR)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        averaged.update(model)
        recent = [*recent[-19:], loss.item()]
        if step % 20 == 19:
            print(f"step {step + 1} loss {sum(recent) / 20:.4f} scale {scaler.get_scale():.0f}")
    norm = sum(v.norm() ** 2 for v in averaged.values.values()).sqrt().item()
    print(f"counting error {counting_error(model, generator, averaged.values):.3f} norm {norm:.3f}")


if __name__ == "__main__":
    main()
