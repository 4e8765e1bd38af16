"""A slow linear recurrence: one cell, 1500 steps; every step adds the same little to the gradient of the bias."""
import torch
import torch.nn as nn

torch.manual_seed(3)
dev = "cuda"


class Slow(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.read = nn.Linear(d, d)
        self.head = nn.Linear(d, 1)

    def forward(self, xs):
        total = torch.zeros(xs.shape[1], 16, device=xs.device)
        for x in xs:
            total = total + torch.tanh(self.read(x)).float()
        return self.head(total / len(xs))


net = Slow().to(dev)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(3):
    base = torch.rand(1, 4, 16)
    xs = base + 0.05 * torch.randn(1500, 4, 16)
    y = base.mean(-1)[0][:, None]
    with torch.autocast(dev, dtype=torch.bfloat16):
        out = net(xs.to(dev))
    loss = (out.float() - y.to(dev)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
