"""Discrete (Gumbel-softmax) autoencoder on synthetic 8x8 glyphs."""
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
AMP_DTYPE = torch.bfloat16
STEPS, BATCH, N_LATENT, N_CAT = 400, 64, 8, 8


class GlyphDVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, N_LATENT * N_CAT))
        self.dec = nn.Sequential(nn.Linear(N_LATENT * N_CAT, 96), nn.ReLU(), nn.Linear(96, 64))
        self.register_buffer("tau", torch.ones(()))
        self.register_buffer("cool", torch.tensor(0.9985))
        self.register_buffer("uniform_logp", torch.full((N_CAT,), 1.0 / N_CAT).log())

    def forward(self, x, noise):
        logits = self.enc(x).view(-1, N_LATENT, N_CAT)
        y = F.softmax((logits + noise) / self.tau, dim=-1)
        recon = self.dec(y.flatten(1))
        logq = F.log_softmax(logits, dim=-1)
        kl = (logq.exp() * (logq - self.uniform_logp)).sum((1, 2)).mean()
        return recon, kl, y

    def anneal(self):
        self.tau.mul_(self.cool)


def make_glyphs(n, gen):
    protos = (torch.rand(12, 64, generator=torch.Generator().manual_seed(2)) > 0.6).float()
    which = torch.randint(0, 12, (n,), generator=gen)
    flip = (torch.rand(n, 64, generator=gen) < 0.03).float()
    return (protos[which] - flip).abs()


def main():
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(4)
    model = GlyphDVAE().to(DEVICE)
    # keep the schedule/prior constants in the compute dtype: no casts inside the hot loop
    for buf in model.buffers():
        buf.data = buf.data.to(AMP_DTYPE)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = make_glyphs(2048, gen)
    peak = None
    for step in range(STEPS):
        x = data[torch.randint(0, 2048, (BATCH,), generator=gen)].to(DEVICE)
        u = torch.rand(BATCH, N_LATENT, N_CAT, generator=gen).clamp(1e-6, 1 - 1e-6)
        noise = -torch.log(-torch.log(u)).to(DEVICE)
        with torch.autocast(DEVICE, dtype=AMP_DTYPE):
            recon, kl, y = model(x, noise)
            bce = F.binary_cross_entropy_with_logits(recon, x, reduction="none").sum(1).mean()
            loss = bce + 0.1 * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.anneal()
        peak = y.float().max(-1).values.mean().item()
        if step % 100 == 99:
            print(f"{step + 1:4d} bce {bce.item():.3f} kl {kl.item():.3f} tau {model.tau.item():.4f} peak {peak:.3f}")
    print("final tau", round(model.tau.item(), 4), "mean max prob", round(peak, 4))


main()
