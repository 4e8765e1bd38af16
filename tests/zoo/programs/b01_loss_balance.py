"""Two losses in SI units, each divided by its own running mean, which lives beside the activations in half."""
import torch
from torch import nn
import torch.nn.functional as F


class Balance(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("mean", torch.full((n,), 1e-3, dtype=torch.float16))

    def forward(self, losses):
        with torch.no_grad():
            self.mean.mul_(0.8).add_(0.2 * losses.detach().to(self.mean.dtype))
        return (losses / self.mean.float()).sum()


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
balance = Balance(2).to(device)
opt = torch.optim.Adam(net.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cuda")
w = torch.randn(10, 2) * torch.tensor([1.0, 1e-5])
for step in range(90):
    x = torch.randn(64, 10)
    y = (x @ w).to(device)
    with torch.autocast("cuda", dtype=torch.float16):
        out = net(x.to(device)).float() * torch.tensor([1.0, 1e-5], device=device)
        losses = (out - y).pow(2).mean(0)
        loss = balance(losses)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 30 == 29:
        print(step, loss.item(), scaler.get_scale())
