"""Half-precision model, FP32 master weights by hand (as apex O2 did)."""
import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device).half()
master = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
opt = torch.optim.Adam(master, lr=1e-3)
SCALE = 1024.0
w = torch.randn(16, 4)
for i in range(120):
    x = torch.randn(64, 16)
    y = (x @ w).argmax(1).to(device)
    loss = nn.functional.cross_entropy(model(x.to(device).half()).float(), y)
    model.zero_grad()
    (loss * SCALE).backward()
    for m, p in zip(master, model.parameters()):
        m.grad = p.grad.float() / SCALE
    opt.step()
    with torch.no_grad():
        for m, p in zip(master, model.parameters()):
            p.copy_(m)
print(loss.item())
