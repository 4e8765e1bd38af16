"""Detector traces: predict the arrival time and log energy of pulses, with the lab's own loss scale."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LossScale:
    """Dynamic loss scale: backs off when a gradient is not finite, grows after a quiet stretch."""

    def __init__(self, value=2.0**8, backoff=1 / 16, growth=4.0, interval=2000):
        self.value, self.backoff, self.growth, self.interval = value, backoff, growth, interval
        self.quiet, self.skipped = 0, 0

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = all(torch.isfinite(g).all() for g in grads)
        if finite:
            for g in grads:
                g.div_(self.value)
            optimizer.step()
            self.quiet += 1
            if self.quiet % self.interval == 0:
                self.value *= self.growth
        else:
            self.value *= self.backoff
            self.quiet = 0
            self.skipped += 1
        return finite


class PulseNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 9, stride=2, padding=4)
        self.mix = nn.Conv1d(width, width, 5, stride=2, padding=2)
        self.body = nn.Sequential(nn.Linear(width * 16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 2)

    def forward(self, trace):
        h = self.stem(trace[:, None])
        power = h * h
        h = torch.relu(self.mix(torch.log(power + 0.01)))
        return self.head(self.body(h.flatten(1)))


def traces(n, length=64, burst=0.0):
    t = torch.arange(length).float()
    arrival = torch.rand(n) * 40 + 10
    amplitude = torch.exp(torch.randn(n) * 0.7 + 1.0)
    amplitude = torch.where(torch.rand(n) < burst, amplitude * 3000, amplitude)
    shape = torch.relu(1 - (t - arrival[:, None]).abs() / 6)
    x = amplitude[:, None] * shape + 0.1 * torch.randn(n, length)
    return x, torch.stack([(arrival - 30) / 12, torch.log(amplitude).clamp(max=3) - 1], 1)


def main(steps=80, batch=96):
    torch.manual_seed(0)
    model = PulseNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scale = LossScale()
    for step in range(steps):
        x, y = (v.to(device) for v in traces(batch, burst=0.03 if step % 5 == 4 else 0.0))
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.smooth_l1_loss(model(x), y)
        (loss * scale.value).backward()
        scale.step(optimizer)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    x, y = (v.to(device) for v in traces(1024))
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        error = (model(x).float() - y).pow(2).mean().sqrt()
    print(f"test rmse {error.item():.4f} skipped {scale.skipped}")
    return model, {"error": error, "scale": scale.value}


if __name__ == "__main__":
    main()
