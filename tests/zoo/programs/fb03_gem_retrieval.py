"""Instance retrieval with GeM descriptors and a proxy loss."""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

np.random.seed(7)
torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"

CLASSES, SHOTS, SIDE = 16, 24, 20


def render(label, rng):
    """Two oriented gratings whose angle and period depend on the class, under noise and a random phase."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    img = np.zeros((SIDE, SIDE))
    for k, (angle, freq) in enumerate([(label % 4, 3 + label // 4), (label // 4, 2 + label % 4)]):
        a = math.pi * angle / 4 + 0.3 * k
        img += np.sin(2 * math.pi * (freq * (x * math.cos(a) + y * math.sin(a)) + rng.random()))
    return img + 1.6 * rng.standard_normal((SIDE, SIDE))


def dataset(per_class, seed):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), per_class)
    images = np.stack([render(c, rng) for c in labels])
    return torch.tensor(images, dtype=torch.float32)[:, None].to(device), torch.tensor(labels).to(device)


class GeM3(nn.Module):
    """Generalised mean with p = 3; two multiplications are cheaper than pow."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        x = x.clamp(min=self.eps)
        return (x * x * x).mean(dim=(2, 3)).pow(1.0 / 3)


class Descriptor(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 16, 3, stride=2, padding=1), nn.ReLU(),
        )
        self.pool = GeM3()
        self.whiten = nn.Linear(16, dim)

    def forward(self, x):
        return F.normalize(self.whiten(self.pool(self.trunk(x))), dim=1)


train_x, train_y = dataset(SHOTS, 11)
query_x, query_y = dataset(8, 12)
net = Descriptor().to(device)
proxies = nn.Parameter(torch.randn(CLASSES, 24, device=device))
params = list(net.parameters()) + [proxies]
for p in params:
    p.register_hook(lambda g: torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0))
opt = torch.optim.Adam(params, lr=4e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)

for epoch in range(8):
    order = torch.from_numpy(np.random.permutation(len(train_x)))
    for idx in order.split(32):
        with torch.autocast("cuda", dtype=torch.float16):
            logits = 12 * net(train_x[idx]) @ F.normalize(proxies, dim=1).t()
            loss = F.cross_entropy(logits, train_y[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print("epoch", epoch, "loss %.3f" % loss.item())

net.eval()
with torch.no_grad():
    bank, query = net(train_x), net(query_x)
    hit = train_y[(query @ bank.t()).argmax(1)] == query_y
print("metric %.4f" % hit.float().mean().item())
