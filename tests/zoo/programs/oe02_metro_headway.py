"""Forecast of a metro line's headways: a residual net with FP16 weights and FP32 masters."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)


STATIONS, PAST = 12, 10
network = torch.randn(4, STATIONS)


def lines(n):
    """Delays of all stations over the past minutes, and in the next one: a few waves run along the line."""
    t = torch.arange(PAST + 1.0)
    period, phase = torch.rand(n, 4, 1) * 8 + 6, torch.rand(n, 4, 1) * 6.28
    waves = torch.sin(6.2832 * t / period + phase)
    y = torch.einsum("nkt,ks->nts", waves, network) + 0.1 * torch.randn(n, PAST + 1, STATIONS)
    return y[:, :PAST].to(device), y[:, PAST].to(device)


class Headway(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.inp = nn.Linear(STATIONS * PAST, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3))
        self.out = nn.Linear(width, STATIONS)

    def forward(self, x):
        x = torch.relu(self.inp(x.flatten(1)))
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


class FP16Trainer:
    def __init__(self, model, lr, clip=1.0, init_scale=2.0**24, window=20):
        self.model = model.half()
        self.params = list(model.parameters())
        self.masters = [p.detach().clone().float() for p in self.params]
        self.optimizer = torch.optim.Adam(self.masters, lr=lr)
        self.clip, self.scale, self.window = clip, init_scale, window
        self.good = 0

    def clip_grads(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        coef = self.clip * self.scale / (norm.item() + 1e-6)
        if coef < 1:
            for p in self.params:
                p.grad.mul_(coef)

    def step(self, x, y):
        for p in self.params:
            p.grad = None
        loss = (self.model(x.half()).float() - y).square().mean()
        (loss * self.scale).backward()
        if not all(torch.isfinite(p.grad).all() for p in self.params):
            self.scale, self.good = max(self.scale / 2, 1.0), 0
            return loss.item()
        self.clip_grads()
        for master, p in zip(self.masters, self.params):
            master.grad = p.grad.float() / self.scale
        self.optimizer.step()
        with torch.no_grad():
            for master, p in zip(self.masters, self.params):
                p.copy_(master)
        self.good += 1
        if self.good % self.window == 0:
            self.scale = min(self.scale * 2, 2.0**24)
        return loss.item()


def main():
    model = Headway().to(device)
    trainer = FP16Trainer(model, lr=2e-3)
    for step in range(200):
        loss = trainer.step(*lines(48))
        if step % 50 == 0:
            print(step, round(loss, 4), trainer.scale)
    torch.manual_seed(6)
    x, y = lines(512)
    with torch.no_grad():
        error = (model.float()(x) - y).square().mean()
    print(f"metric {error.item():.4f}")


main()
