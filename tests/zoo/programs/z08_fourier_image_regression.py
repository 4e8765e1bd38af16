"""Coordinate network for image regression ("Fourier features let networks learn high frequency functions")."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--size", type=int, default=64)
p.add_argument("--scale", type=float, default=20.0)
p.add_argument("--iters", type=int, default=400)
p.add_argument("--batch", type=int, default=512)
cfg = p.parse_args([])
device = "cuda" if torch.cuda.is_available() else "cpu"


class FourierStem(nn.Module):
    def __init__(self, n=64, scale=10.0):
        super().__init__()
        self.B = nn.Linear(2, n, bias=False)
        nn.init.normal_(self.B.weight, std=scale * 2 * torch.pi)
        self.B.weight.requires_grad_(False)

    def forward(self, xy):
        ph = self.B(xy)
        return torch.cat([ph.sin(), ph.cos()], dim=-1)


class INR(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = FourierStem(scale=cfg.scale)
        self.l1 = nn.Linear(128, 64)
        self.l2 = nn.Linear(64, 64)
        self.rgb = nn.Linear(64, 3)

    def forward(self, xy):
        return torch.sigmoid(self.rgb(F.relu(self.l2(F.relu(self.l1(self.stem(xy)))))))


def picture(s):
    y, x = torch.meshgrid(torch.arange(s), torch.arange(s), indexing="ij")
    r = ((x - s / 2) ** 2 + (y - s / 2) ** 2).float().sqrt()
    img = torch.stack([0.5 + 0.5 * torch.sin(r * 0.9), ((x // 4 + y // 4) % 2).float(), 0.5 + 0.4 * torch.sin(x * 0.8)], -1)
    xy = torch.stack([x, y], -1).float().add(0.5).div(s)
    return xy.reshape(-1, 2).to(device), img.reshape(-1, 3).to(device)


torch.manual_seed(0)
xy, rgb = picture(cfg.size)
net = INR().to(device)
opt = torch.optim.Adam([q for q in net.parameters() if q.requires_grad], lr=2e-3)

for it in range(cfg.iters):
    idx = torch.randint(0, len(xy), (cfg.batch,))
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = F.mse_loss(net(xy[idx]), rgb[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (it + 1) % 100 == 0:
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
            mse = F.mse_loss(net(xy).float(), rgb).item()
        print(f"{it + 1}: psnr {-10 * torch.log10(torch.tensor(mse)).item():.2f} dB")
