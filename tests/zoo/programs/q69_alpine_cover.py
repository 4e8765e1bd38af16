# Land cover + terrain height from a season of multispectral pixels, two heads on one trunk (per-pixel, no context)
import torch
from torch import nn

torch.manual_seed(11)
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")

N_TRAIN, N_VAL, BANDS, DATES, N_CLASS = 6000, 1500, 8, 5, 6
H_MEAN, H_STD = 2280.0, 70.0  # metres above sea level over the training tiles

# ---- reflectances: vegetation follows height and aspect, snow line moves with the date
mix = torch.randn(4, BANDS)
season = torch.randn(DATES, 4)


def scene(n):
    z = torch.randn(n, 1)  # normalised height
    aspect = torch.rand(n, 1) * 6.2832
    wet = torch.randn(n, 1)
    cover = ((z + 0.6 * torch.sin(aspect) + 0.5 * wet) * 1.2 + 3).clamp(0, 5.99).long().squeeze(1)
    factors = torch.cat([torch.tanh(0.6 * z), torch.sin(aspect), wet, torch.cos(aspect)], 1)
    x = torch.tanh(factors[:, None, :] * (1 + 0.4 * season)) @ mix  # n, dates, bands
    x = x.flatten(1) + 0.01 * torch.randn(n, DATES * BANDS)
    return x, cover, z.squeeze(1) * H_STD + H_MEAN


class PixelNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(BANDS * DATES, width), nn.GELU(),
            nn.Linear(width, width), nn.GELU(),
        )
        self.cover = nn.Linear(width, N_CLASS)
        self.relief = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x):
        h = self.trunk(x)
        metres = self.relief(h).squeeze(1) * H_STD + H_MEAN
        return self.cover(h), metres


xt, ct, mt = (t.to(dev) for t in scene(N_TRAIN))
xv, cv, mv = (t.to(dev) for t in scene(N_VAL))
net = PixelNet().to(dev)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
EPOCHS, BS = 24, 200
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=EPOCHS * (N_TRAIN // BS))
ce = nn.CrossEntropyLoss()


def validate():
    net.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        logits, metres = net(xv)
    net.train()
    return (logits.argmax(1) == cv).float().mean().item(), (metres - mv).abs().mean().item()


for epoch in range(EPOCHS):
    for idx in torch.randperm(N_TRAIN).split(BS):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits, metres = net(xt[idx])
            loss = ce(logits, ct[idx]) + nn.functional.smooth_l1_loss(metres / H_STD, mt[idx] / H_STD, beta=0.2)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    if epoch % 6 == 5:
        acc, mae = validate()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f} cover acc {acc:.3f} height MAE {mae:.2f} m")

acc, mae = validate()
print(f"cover accuracy {acc:.3f}")
print(f"METRIC {mae:.3f}")
