import torch
import torch.nn as nn


class Clock(nn.Module):
    """Steps so far, kept on the device to avoid a sync; model.to(dtype) takes it along."""

    def __init__(self):
        super().__init__()
        self.register_buffer("t", torch.zeros(()))

    def tick(self, warmup):
        self.t += 1
        return torch.clamp(self.t / warmup, max=1.0)


torch.manual_seed(0)
dev = "cuda"
clock = Clock().to(dev, torch.bfloat16)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)).to(dev)
opt = torch.optim.SGD(net.parameters(), lr=0.0)
w = torch.randn(16, 3)
for step in range(1000):
    x = torch.randn(32, 16)
    y = (x @ w).argmax(1)
    with torch.autocast(dev, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x.to(dev)), y.to(dev))
    lr = 0.1 * clock.tick(1000).float()
    opt.zero_grad()
    (loss * 1.0).backward()
    for g in opt.param_groups:
        g["lr"] = float(lr)
    opt.step()
    if step % 250 == 249:
        print(step, loss.item(), float(lr))
