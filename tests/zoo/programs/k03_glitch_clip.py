# Sensor calibration network. Clipping threshold follows a moving average of the gradient norm.
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class NormTracker:
    """Clip to a multiple of the usual norm, so that faulty readings cannot throw the weights around."""

    def __init__(self, params, beta=0.95, factor=1.2):
        self.params = list(params)
        self.beta, self.factor = beta, factor
        self.usual = None

    def clip(self):
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.params])
        norm = norm.item()
        limit = norm if self.usual is None else self.factor * self.usual
        shrink = limit / (norm + 1e-6)
        if shrink < 1:
            for p in self.params:
                p.grad.mul_(shrink)
        kept = min(norm, limit)
        self.usual = kept if self.usual is None else self.beta * self.usual + (1 - self.beta) * kept
        return norm


def readings(n, gen, faulty=0.06):
    volts = torch.rand(n, 10, generator=gen) * 2 - 1
    temp = torch.rand(n, 2, generator=gen)
    drift = (volts[:, :5] * temp[:, :1]).sum(1, keepdim=True)
    target = torch.cat([volts[:, :4].sin() * 4 + drift, volts[:, 4:8] * volts[:, :4] * 6], 1)
    x = torch.cat([volts, temp], 1)
    if faulty and torch.rand((), generator=gen) < faulty * 3:
        bad = torch.rand(n, generator=gen) < 0.25
        target[bad] += 150 * torch.randn(int(bad.sum()), 8, generator=gen)
    return x.to(device), target.to(device)


def build():
    return nn.Sequential(nn.Linear(12, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8)).to(device)


def train(steps=260):
    torch.manual_seed(21)
    gen = torch.Generator().manual_seed(22)
    net = build()
    opt = torch.optim.SGD(net.parameters(), lr=4e-3, momentum=0.8)
    scaler = torch.amp.GradScaler(device)
    tracker = NormTracker(net.parameters())
    for step in range(steps):
        x, y = readings(128, gen)
        with torch.autocast(device, dtype=torch.float16):
            out = net(x)
            loss = (out.float() - y).square().sum(1).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = tracker.clip()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        if step % 40 == 0:
            print(f"{step:4d} loss {loss.item():9.3f} norm {norm:9.3f} usual {tracker.usual:9.3f} scale {scaler.get_scale():.0f}")
    x, y = readings(4096, gen, faulty=0)
    with torch.no_grad():
        err = (net(x) - y).square().mean().item()
    print(f"clean error {err:.4f}")
    return err


if __name__ == "__main__":
    train()
