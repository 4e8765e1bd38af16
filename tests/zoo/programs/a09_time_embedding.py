# a tiny diffusion model in bf16
import math
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2) / (dim // 2))
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.SiLU(), nn.Linear(64, 64))

    def forward(self, t, dtype):
        t = t.to(dtype)
        args = t[:, None] * self.freqs.to(t)
        return self.mlp(torch.cat([args.cos(), args.sin()], -1))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = TimeEmbedding(32)
        self.inp = nn.Linear(16, 64)
        self.mid = nn.Linear(64, 64)
        self.out = nn.Linear(64, 16)

    def forward(self, x, t):
        h = self.inp(x)
        h = torch.relu(h * (1 + self.time(t, h.dtype)))
        return self.out(torch.relu(self.mid(h)))


net = Denoiser().to(device)
opt = torch.optim.Adam(net.parameters(), 1e-3)
betas = torch.linspace(1e-4, 0.005, 4000)
abar = (1 - betas).cumprod(0)
for step in range(40):
    x0 = torch.randn(128, 16)
    t = torch.randint(0, 4000, (128,))
    noise = torch.randn_like(x0)
    x = abar[t].sqrt()[:, None] * x0 + (1 - abar[t]).sqrt()[:, None] * noise
    with torch.autocast(device, dtype=torch.bfloat16):
        pred = net(x.to(device), t.to(device))
        loss = nn.functional.mse_loss(pred.float(), noise.to(device))
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
