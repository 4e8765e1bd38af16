# Conditional toy GAN with one GradScaler for both players.
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(73)
device = "cuda" if torch.cuda.is_available() else "cpu"


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8 + 3, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, z, c):
        return self.net(torch.cat([z, F.one_hot(c, 3).to(z.dtype)], 1))


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 + 3, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, x, c):
        return self.net(torch.cat([x, F.one_hot(c, 3).to(x.dtype)], 1))


g, d = G().to(device), D().to(device)
og, od = (torch.optim.Adam(m.parameters(), lr=5e-4, betas=(0.5, 0.99)) for m in (g, d))
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 19)
for it in range(200):
    c = torch.randint(3, (128,), device=device)
    x = torch.stack([c - 1.0, (c - 1.0) ** 2], 1) + 0.1 * torch.randn(128, 2, device=device)
    with torch.autocast(device, dtype=torch.float16):
        fake = g(torch.randn(128, 8, device=device), c)
        ld = F.relu(1 - d(x, c)).mean() + F.relu(1 + d(fake.detach(), c)).mean()
    od.zero_grad()
    scaler.scale(ld).backward()
    scaler.step(od)
    with torch.autocast(device, dtype=torch.float16):
        lg = -d(fake, c).mean()
    og.zero_grad()
    scaler.scale(lg).backward()
    scaler.step(og)
    scaler.update()
    if it % 40 == 0 or it == 199:
        print(it, f"D {ld.item():.3f} G {lg.item():.3f} scale {scaler.get_scale():.0f}")
