"""Prototypes that start at one exemplar per class; distance softmax with a contrastive term."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class ProtoLoss(nn.Module):
    def __init__(self, eps=1e-8):
        super().__init__()
        self.eps = eps

    def distance(self, e, c):
        diff = e[:, None] - c[None]
        return torch.sqrt((diff * diff).mean(-1) + self.eps)

    def forward(self, e, c, y):
        d = self.distance(e, c)
        return F.cross_entropy(-4 * d, y) + 0.1 * d.gather(1, y[:, None]).mean()


class Backbone(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 8, 3, 2), nn.Conv2d(8, 16, 3, 2)
        self.fc = nn.Linear(144, d)

    def forward(self, x):
        return self.fc(F.relu(self.c2(F.relu(self.c1(x)))).flatten(1))


net, crit = Backbone().to(device), ProtoLoss()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
exemplar = torch.randn(10, 1, 16, 16, device=device)
for it in range(60):
    y = torch.arange(10, device=device).repeat(4)
    noise = 0.8 * torch.randn(40, 1, 16, 16, device=device)
    noise[:10] = 0  # the exemplars themselves are in the batch
    with torch.autocast(device, dtype=torch.float16):
        e = net(exemplar[y] + noise)
        loss = crit(e, e[:10], y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if it % 20 == 0:
        print(it, loss.item(), scaler.get_scale())
print("end", loss.item(), scaler.get_scale())
