import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
Z, RES, BATCH, STEPS = 16, 16, 16, 120


class Generator(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.fc = nn.Linear(Z, width * 4 * 4)
        self.up1 = nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.up2 = nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, z):
        h = F.relu(self.fc(z)).view(z.shape[0], -1, 4, 4)
        h = F.relu(self.up1(h))
        h = F.relu(self.up2(h))
        return torch.tanh(self.out(h))


class PatchCritic(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.c1 = nn.Conv2d(1, width, 4, 2, 1)
        self.c2 = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x):
        h = F.leaky_relu(self.c1(x), 0.2)
        h = F.leaky_relu(self.c2(h), 0.2)
        return self.head(h).flatten(1)


def real_batch(n):
    yy, xx = torch.meshgrid(torch.arange(RES), torch.arange(RES), indexing="ij")
    cy = torch.randint(5, 11, (n, 1, 1))
    cx = torch.randint(5, 11, (n, 1, 1))
    d2 = (yy - cy) ** 2 + (xx - cx) ** 2
    return (1.8 * torch.exp(-d2 / 8.0) - 0.9).unsqueeze(1).to(device)


G, D = Generator().to(device), PatchCritic().to(device)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.99))
scaler_g = torch.amp.GradScaler("cuda", growth_interval=500)
scaler_d = torch.amp.GradScaler("cuda", growth_interval=500)

for step in range(STEPS):
    real = real_batch(BATCH)
    z = torch.randn(BATCH, Z, device=device)

    # discriminator: hinge, every patch votes
    opt_d.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        fake = G(z).detach()
        p_real, p_fake = D(real), D(fake)
        loss_d = (F.relu(1 - p_real) + F.relu(1 + p_fake)).float().sum(1).mean()
    scaler_d.scale(loss_d).backward()
    scaler_d.step(opt_d)

    # generator
    opt_g.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss_g = -D(G(z)).float().mean()
    scaler_g.scale(loss_g).backward()
    scaler_g.step(opt_g)

    scaler_g.update()
    scaler_d.update(scaler_g.get_scale())

    if step % 20 == 0:
        print(f"step {step:3d}  d {loss_d.item() / p_real.shape[1]:.4f}  g {loss_g.item():.4f}")

with torch.no_grad():
    test = G(torch.randn(256, Z, device=device))
    ref = real_batch(256)
    gap = (test.mean(0) - ref.mean(0)).abs().mean() + (test.std(0) - ref.std(0)).abs().mean()
    split = (D(ref).mean() - D(test).mean()).item()
print(f"moment gap {gap.item():.4f}  critic margin {split:.4f}")
