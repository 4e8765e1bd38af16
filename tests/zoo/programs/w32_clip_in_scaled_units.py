"""RealNVP on two moons; gradients are clipped while still scaled, with the threshold scaled as well."""
import math
import torch
import torch.nn as nn


class Coupling(nn.Module):
    def __init__(self, flip, h=32):
        super().__init__()
        self.flip, self.net = flip, nn.Sequential(nn.Linear(1, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 2))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).float().chunk(2, 1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.squeeze(1)


class Flow(nn.Module):
    def __init__(self, n=6):
        super().__init__()
        self.steps = nn.ModuleList(Coupling(i % 2 == 1) for i in range(n))

    def nll(self, x):
        ld = 0
        for s in self.steps:
            x, l = s(x)
            ld = ld + l
        return (0.5 * (x ** 2).sum(1) + math.log(2 * math.pi) - ld).mean()


def moons(n):
    u = torch.rand(n) * math.pi
    up = torch.rand(n) < 0.5
    x = torch.where(up, u.cos(), 1 - u.cos())
    y = torch.where(up, u.sin(), 0.5 - u.sin())
    return torch.stack([x, y], 1) + 0.06 * torch.randn(n, 2)


def main(steps=200, max_norm=0.5):
    torch.manual_seed(9)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    flow = Flow().to(device)
    opt = torch.optim.SGD(flow.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 12)
    for it in range(steps):
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = flow.nll(moons(128).to(device))
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(flow.parameters(), max_norm * scaler.get_scale())
        scaler.step(opt)
        scaler.update()
        if it % 50 == 49:
            print(it + 1, f"nll {loss.item():.4f}")


main()
