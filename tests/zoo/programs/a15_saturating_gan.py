import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
G = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
D = nn.Sequential(nn.Linear(2, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)).to(device)
with torch.no_grad():  # a discriminator from an earlier stage, which still takes fakes for real
    D[2].bias.fill_(9.0)
opt_g = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), 2e-6, betas=(0.5, 0.999))
scaler_g = torch.amp.GradScaler("cuda")
scaler_d = torch.amp.GradScaler("cuda")
bce = nn.BCEWithLogitsLoss()

for step in range(25):
    real = torch.randn(64, 2, device=device) * 0.3 + 1
    z = torch.randn(64, 8, device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        fake = G(z)
        d_real, d_fake = D(real), D(fake.detach())
        loss_d = bce(d_real, torch.ones_like(d_real)) + bce(d_fake, torch.zeros_like(d_fake))
    opt_d.zero_grad()
    scaler_d.scale(loss_d).backward()
    scaler_d.step(opt_d)
    scaler_d.update()

    with torch.autocast("cuda", dtype=torch.float16):
        p = torch.sigmoid(D(G(z)))
        loss_g = torch.log(1 - p).mean()
    opt_g.zero_grad()
    scaler_g.scale(loss_g).backward()
    scaler_g.step(opt_g)
    scaler_g.update()
print(loss_d.item(), loss_g.item(), scaler_d.get_scale(), scaler_g.get_scale())
