"""Super-resolution with a scaler that "does not jump around"."""
import argparse
from collections import defaultdict
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler, _refresh_per_optimizer_state


class StaticScaler(GradScaler):
    """Keeps one scale for the whole training: reproducible runs."""

    def update(self, new_scale=None):
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)


class SR(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.a = nn.Conv2d(1, c, 3, padding=1)
        self.b = nn.Conv2d(c, c, 3, padding=1)
        self.up = nn.PixelShuffle(2)
        self.out = nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = h + torch.relu(self.b(h))
        return self.up(self.out(h))


def make(n):
    g = torch.linspace(-3, 3, 32)
    f = torch.rand(n, 1, 1, 1) * 3 + 0.5
    hr = torch.sin(f * g.view(1, 1, 1, -1)) * torch.cos(f * g.view(1, 1, -1, 1))
    return nn.functional.avg_pool2d(hr, 2), hr


def main(a):
    torch.manual_seed(a.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = SR().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=a.lr)
    scaler = StaticScaler(device, init_scale=2.0**a.log_scale)
    for step in range(a.steps):
        lr_img, hr = make(8)
        opt.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16):
            sr = net(lr_img.to(device))
            loss = ((sr - hr.to(device)) ** 2).sum() / 8
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(step, loss.item())
    print("last", loss.item())


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--log-scale", type=int, default=16)
    p.add_argument("--seed", type=int, default=0)
    main(p.parse_args())
