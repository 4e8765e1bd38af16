"""Self-supervised: invariance + variance of the embedding (as in VICReg)."""
import torch
import torch.nn as nn


def variance_term(z):
    std = torch.sqrt(z.var(dim=0))
    return torch.relu(1 - std).mean()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
        self.shift = nn.Parameter(torch.full((32,), 24.0))
        self.proj = nn.Linear(32, 24)
        nn.init.normal_(self.proj.weight, std=2e-4)
        nn.init.constant_(self.proj.bias, 4.0)

    def forward(self, x):
        return self.proj(self.net(x))


torch.manual_seed(0)
dev = torch.device("cuda")
net = Encoder().to(dev)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
for step in range(30):
    x = torch.randn(32, 16)
    a, b = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        za, zb = net(a.to(dev)), net(b.to(dev))
        loss = nn.functional.mse_loss(za, zb) + variance_term(za) + variance_term(zb)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(step, loss.item(), scaler.get_scale())
