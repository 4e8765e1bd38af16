# Wave-field surrogate with an own dynamic loss scaler.
import torch
from torch import nn


class DynamicScaler:
    def __init__(self, start=2.0 ** 20, window=500):
        self.s, self.window, self.clean = start, window, 0

    def __call__(self, loss):
        return loss * self.s

    def step(self, opt):
        ps = [p for g in opt.param_groups for p in g["params"] if p.grad is not None]
        if not all(bool(torch.isfinite(p.grad).all()) for p in ps):
            self.s, self.clean = self.s / 2, 0
            return
        for p in ps:
            p.grad.mul_(1.0 / self.s)
        opt.step()
        self.clean += 1
        if self.clean == self.window:
            self.s, self.clean = self.s * 2, 0


def main():
    torch.manual_seed(239)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    scale = DynamicScaler()
    for it in range(250):
        p = torch.rand(256, 3) * 2 - 1
        u = torch.sin(3 * p[:, :1]) * torch.cos(2 * p[:, 1:2] - p[:, 2:])
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.mse_loss(net(p.to(device)), u.to(device))
        opt.zero_grad()
        scale(loss).backward()
        scale.step(opt)
        if it % 50 == 0 or it == 249:
            print(f"{it} {loss.item():.5f} scale 2^{torch.log2(torch.tensor(scale.s)).item():.0f}")


main()
