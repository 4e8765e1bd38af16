"""Monocular depth (mm) plus a validity mask, shared convolutional trunk."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class DepthNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.ReLU())
        self.depth = nn.Conv2d(c, 1, 1)
        self.valid = nn.Sequential(nn.Conv2d(c, 8, 1), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def forward(self, x):
        h = self.trunk(x)
        return self.depth(h) * 1000.0, self.valid(h)


def scene(gen, n=8, s=24):
    tex = torch.randn(n, 1, s, s, generator=gen)
    disp = F.avg_pool2d(torch.randn(n, 1, s, s, generator=gen), 5, 1, 2) * 4
    mm = 1500 + 600 * torch.tanh(disp)
    ok = ((tex + 0.3 * torch.randn(n, 1, s, s, generator=gen)) > 0.2).float()
    return torch.cat([disp, tex], 1).to(device), mm.to(device), ok.to(device)


def train(steps=200):
    torch.manual_seed(161)
    gen = torch.Generator().manual_seed(162)
    net = DepthNet().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device)
    right = []
    for it in range(steps):
        x, mm, ok = scene(gen)
        opt.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device, dtype=torch.float16):
            depth, valid = net(x)
        dloss = F.mse_loss(depth.float(), mm, reduction="sum")
        vloss = F.binary_cross_entropy_with_logits(valid.float(), ok)
        scaler.scale(dloss + 0.1 * vloss).backward()
        scaler.step(opt)
        scaler.update()
        right.append(((valid > 0).float() == ok).float().mean().item())
        if it % 40 == 39:
            rmse = (dloss / mm.numel()).sqrt().item()
            print(f"{it + 1} rmse {rmse:.1f} mm, validity {sum(right[-20:]) / 20:.3f}")


train()
