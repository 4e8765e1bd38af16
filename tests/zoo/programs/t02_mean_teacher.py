"""Semi-supervised digits-like classification with a mean teacher."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CENTERS = torch.randn(8, 48)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU())
        self.head = nn.Linear(96, 8)

    def forward(self, x):
        return self.head(self.body(x))


def sample(n):
    y = torch.randint(0, 8, (n,))
    return (CENTERS[y] + 1.2 * torch.randn(n, 48)).to(device), y.to(device)


student = Net().to(device)
teacher = copy.deepcopy(student).to(torch.bfloat16).requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)
DECAY = 0.999


@torch.no_grad()
def update_teacher():
    for pt, ps in zip(teacher.parameters(), student.parameters()):
        pt.mul_(DECAY).add_(ps.to(pt.dtype), alpha=1 - DECAY)


losses = []
for step in range(40):
    x, y = sample(32)
    u, _ = sample(128)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        with torch.no_grad():
            target = teacher(u.to(torch.bfloat16)).float().softmax(-1)
        supervised = F.cross_entropy(student(x), y)
        noisy = student(u + 0.1 * torch.randn_like(u)).float().softmax(-1)
        loss = supervised + 4.0 * F.mse_loss(noisy, target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    update_teacher()
    losses.append(loss.item())
    if step % 10 == 0:
        print(f"step {step:3d} loss {loss.item():.4f}")
