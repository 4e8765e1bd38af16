# Three small nets, three optimizers, one scaler: VAE for shapes, classifier on its latent, and a
# regressor for the style. The latent is detached for the two consumers.
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(53)
device = "cuda" if torch.cuda.is_available() else "cpu"


class VAE(nn.Module):
    def __init__(self, d=24, z=6):
        super().__init__()
        self.e = nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, 2 * z))
        self.d = nn.Sequential(nn.Linear(z, 48), nn.ReLU(), nn.Linear(48, d))

    def forward(self, x):
        mu, lv = self.e(x).float().chunk(2, -1)
        lv = lv.clamp(-8, 4)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * lv)
        kl = 0.5 * (mu.square() + lv.exp() - 1 - lv).sum(-1).mean()
        return self.d(z).float(), mu, kl


vae = VAE().to(device)
clf = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5)).to(device)
reg = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
opts = {
    "vae": torch.optim.Adam(vae.parameters(), lr=2e-3),
    "clf": torch.optim.SGD(clf.parameters(), lr=0.05),
    "reg": torch.optim.SGD(reg.parameters(), lr=0.02),
}
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 18)
basis = torch.randn(5, 24)
style_dir = torch.randn(24)

ema, skipped = {}, 0
for step in range(400):
    c = torch.randint(0, 5, (96,))
    s = torch.randn(96, 1)
    x = (basis[c] + 0.5 * s * style_dir + 0.2 * torch.randn(96, 24)).to(device)
    c, s = c.to(device), s.to(device)
    for o in opts.values():
        o.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.float16):
        rec, mu, kl = vae(x)
        losses = {
            "vae": F.mse_loss(rec, x) + 0.02 * kl,
            "clf": F.cross_entropy(clf(mu.detach()), c),
            "reg": F.mse_loss(reg(mu.detach()).float(), s),
        }
    for l in losses.values():
        scaler.scale(l).backward()
    for o in opts.values():
        scaler.step(o)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    for k, v in losses.items():
        ema[k] = 0.97 * ema.get(k, v.item()) + 0.03 * v.item()
    if step % 100 == 0:
        print(step, {k: round(v, 4) for k, v in ema.items()}, "skipped", skipped)
print("FINAL " + " ".join(f"{k}={v:.4f}" for k, v in ema.items()))
