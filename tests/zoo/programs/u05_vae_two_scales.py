# VAE on binary glyphs; every loss has its own scale
import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(23)
SCALES = {"recon": 2.0 ** 16, "kl": 2.0 ** 10}

enc = nn.Sequential(nn.Flatten(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 2 * 8)).to(device)
dec = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 256)).to(device)
params = list(enc.parameters()) + list(dec.parameters())
opt = torch.optim.Adam(params, lr=1e-3)


def glyphs(n):
    out = torch.zeros(n, 16, 16)
    for k in range(n):
        r, c, s = torch.randint(0, 8, (3,)).tolist()
        out[k, r:r + 3 + s, c:c + 2] = 1
        out[k, r:r + 2, c:c + 3 + s] = 1
    return out.to(device)


def accumulate(losses):
    total = [torch.zeros_like(p) for p in params]
    names = list(losses)
    for k, name in enumerate(names):
        grads = torch.autograd.grad(losses[name] * SCALES[name], params, retain_graph=k + 1 < len(names), allow_unused=True)
        for t, g in zip(total, grads):
            if g is not None:
                t += torch.nan_to_num(g / SCALES[name], nan=0.0, posinf=0.0, neginf=0.0)
    for p, t in zip(params, total):
        p.grad = t


recon_log, kl_log = [], []
for it in range(60):
    x = glyphs(64)
    with torch.autocast(device.type, dtype=torch.float16):
        mu, logvar = enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        logits = dec(z)
        recon = F.binary_cross_entropy_with_logits(logits, x.flatten(1), reduction="sum") / 16
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum() / 64
    accumulate({"recon": recon, "kl": kl})
    opt.step()
    recon_log.append(recon.item())
    kl_log.append(kl.item())
print("recon", recon_log[0], recon_log[-1], "kl", kl_log[-1])
