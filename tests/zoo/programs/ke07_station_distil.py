"""Distil a large fog model of weather stations into a small one for loggers without labels."""
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(15)
# air temperature (K), pressure (Pa), relative humidity (%), wind (m/s)
CENTRE = torch.tensor([285.0, 80000.0, 65.0, 4.0], device=device)
SPREAD = torch.tensor([9.0, 17000.0, 18.0, 2.5], device=device)


def stations(n):
    z = torch.randn(n, 4)
    z[:, 1] = torch.rand(n) * 3.0 - 1.7
    x = z.to(device) * SPREAD + CENTRE
    fog = torch.sin(2.2 * z[:, 1]) * (0.6 + 0.4 * torch.tanh(z[:, 2])) - 0.5 * z[:, 0] + 0.2 * z[:, 3]
    return x, fog.to(device).unsqueeze(1)


class FogNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, x):
        z = (x - CENTRE.to(x.dtype)) / SPREAD.to(x.dtype)
        return self.layers(z)


def fit(net, batches, lr):
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)
    for x, y in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    return net


def frozen(net):
    for p in net.parameters():
        p.requires_grad_(False)
    return net.eval().half()


def unlabelled(teacher, steps):
    for _ in range(steps):
        x, _ = stations(64)
        with torch.no_grad():
            target = teacher(x.half()).float()
        yield x, target


teacher = fit(FogNet(64).to(device), (stations(128) for _ in range(220)), 1e-2)
teacher = frozen(teacher)
student = fit(FogNet(24).to(device), unlabelled(teacher, 250), 1e-2)

x, y = stations(1500)
with torch.no_grad():
    score = nn.functional.mse_loss(student(x), y)
print(f"metric {score.item():.4f}")
