import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(2)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
G = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
og, od = torch.optim.Adam(G.parameters(), 5e-4, (0.5, 0.99)), torch.optim.Adam(D.parameters(), 5e-4, (0.5, 0.99))
sg = torch.amp.GradScaler(device.type, init_scale=2.0**10)
sd = torch.amp.GradScaler(device.type, init_scale=2.0**15)


def amp():
    return torch.autocast(device.type, dtype=torch.float16)


for i in range(120):
    a = torch.rand(64, device=device) * 6.2832
    real = torch.stack([a.cos(), a.sin()], 1)
    z = torch.randn(64, 6, device=device)
    # discriminator: hinge
    D.requires_grad_(True)
    with amp():
        with torch.no_grad():
            fake = G(z)
        ld = F.relu(1 - D(real)).mean() + F.relu(1 + D(fake)).mean()
    od.zero_grad(set_to_none=True)
    sd.scale(ld).backward()
    sd.step(od)
    sd.update()
    # generator
    D.requires_grad_(False)
    with amp():
        lg = -D(G(z)).mean()
    og.zero_grad(set_to_none=True)
    sg.scale(lg).backward()
    sg.unscale_(og)
    torch.nn.utils.clip_grad_norm_(G.parameters(), 5.0)
    sg.step(og)
    sg.update()
print(f"{ld.item():.4f} {lg.item():.4f} {sd.get_scale()} {sg.get_scale()}")
