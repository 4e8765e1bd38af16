"""CAVIA-style meta-learning of sensor curves: only a context vector is adapted per task. Readings are in volts."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(42)
device = "cuda" if torch.cuda.is_available() else "cpu"
MV = 1e-3


class ContextNet(nn.Module):
    def __init__(self, ctx=4, h=48):
        super().__init__()
        self.ctx = ctx
        self.l1, self.l2, self.l3 = nn.Linear(1 + ctx, h), nn.Linear(h, h), nn.Linear(h, 1)

    def forward(self, x, c):
        h = torch.tanh(self.l1(torch.cat([x, c.expand(len(x), -1)], dim=1)))
        h = torch.tanh(self.l2(h))
        return MV * self.l3(h).float()


def task():
    amp, phase = (torch.rand(1) * 2 + 0.5) * MV, torch.rand(1) * 3.14

    def sample(n=128):
        x = torch.rand(n, 1) * 4 - 2
        return x.to(device), (amp * torch.sin(x + phase)).to(device)
    return sample


def adapt(net, x, y, lr=4e5, steps=3):
    c = torch.zeros(1, net.ctx, device=device, requires_grad=True)
    for _ in range(steps):
        g, = torch.autograd.grad(F.mse_loss(net(x, c), y), c, create_graph=True)
        c = c - lr * g
    return c


def outer_loop(meta_steps=150, tasks=4):
    net = ContextNet().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 10)
    run = []
    for it in range(meta_steps):
        opt.zero_grad()
        total = 0.0
        for _ in range(tasks):
            sample = task()
            with torch.autocast(device, dtype=torch.float16):
                c = adapt(net, *sample())
                xq, yq = sample()
                loss = F.mse_loss(net(xq, c), yq) / MV ** 2 / tasks        # report in mV^2
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(opt)
        scaler.update()
        run.append(total)
        if it % 50 == 49:
            print(f"{it} query loss {sum(run[-20:]) / 20:.4f} mV^2, context norm {c.norm().item():.3f}")


outer_loop()
