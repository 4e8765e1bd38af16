"""Image-like classifier with an averaged copy for evaluation."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(20)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CENTERS = torch.randn(6, 40)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU())
        self.head = nn.Linear(64, 6)

    def forward(self, x):
        return self.head(self.body(x))


net = Net().to(device)
average = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)


def sample(n):
    y = torch.randint(0, 6, (n,))
    return (CENTERS[y] + torch.randn(n, 40)).to(device), y.to(device)


losses = []
for step in range(40):
    x, y = sample(64)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for pa, p in zip(average.parameters(), net.parameters()):
            pa.lerp_(p, 0.001)
        if step % 10 == 0:
            snapshot = copy.deepcopy(average).to(torch.bfloat16)
            xe, ye = sample(128)
            acc = (snapshot(xe.to(torch.bfloat16)).argmax(1) == ye).float().mean().item()
            print(f"step {step} loss {loss.item():.4f} average acc {acc:.3f}")
    losses.append(loss.item())
