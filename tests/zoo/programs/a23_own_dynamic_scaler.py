import math
import torch
from torch import nn


class DynamicLossScaler:
    """After apex.fp16_utils."""

    def __init__(self, init=2.0**20, factor=2.0, window=50):
        self.scale, self.factor, self.window, self.good = init, factor, window, 0

    def has_overflow(self, loss):
        return not math.isfinite(loss.item())

    def update(self, overflow):
        if overflow:
            self.scale, self.good = max(self.scale / self.factor, 1.0), 0
        else:
            self.good += 1
            if self.good % self.window == 0:
                self.scale *= self.factor


def train():
    torch.manual_seed(0)
    dev = torch.device("cuda")
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(dev)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    ls = DynamicLossScaler()
    for i in range(60):
        x = torch.randn(64, 16, device=dev)
        y = 3 * x[:, :1]
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), y)
        (loss * ls.scale).backward()
        overflow = ls.has_overflow(loss)
        if not overflow:
            for p in net.parameters():
                p.grad.mul_(1.0 / ls.scale)
            opt.step()
        ls.update(overflow)
        if i % 20 == 0:
            print(i, loss.item(), ls.scale)
    return net


net = train()
