"""Small LSGAN mel vocoder: generator and discriminator in fp16, each with its own dynamic loss scale and clipping."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)
device = "cuda" if torch.cuda.is_available() else "cpu"
BANDS, HOP, FRAMES, BATCH, STEPS = 16, 16, 32, 16, 80


class DynamicScale:
    """Halve on a non-finite gradient, double after `window` good steps."""

    def __init__(self, opt, start=2.0**16, window=200, max_norm=2.0):
        self.opt, self.scale, self.window, self.max_norm, self.good = opt, start, window, max_norm, 0
        self.params = [p for g in opt.param_groups for p in g["params"]]

    def step(self, loss):
        grads = torch.autograd.grad(loss * self.scale, self.params)
        if not all(torch.isfinite(g).all() for g in grads):
            self.scale, self.good = self.scale / 2, 0
            return False
        for p, g in zip(self.params, grads):
            p.grad = g / self.scale
        nn.utils.clip_grad_norm_(self.params, self.max_norm)
        self.opt.step()
        self.good += 1
        if self.good % self.window == 0:
            self.scale *= 2
        return True


class Generator(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.pre = nn.Conv1d(BANDS, width, 5, padding=2)
        self.up = nn.ConvTranspose1d(width, width, 2 * HOP, HOP, padding=HOP // 2)
        self.post = nn.Conv1d(width, 1, 9, padding=4)

    def forward(self, mel):
        h = F.leaky_relu(self.pre(mel), 0.1)
        return torch.tanh(self.post(F.leaky_relu(self.up(h), 0.1)))


class Discriminator(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 15, 4, padding=7), nn.LeakyReLU(0.2),
            nn.Conv1d(width, width, 15, 4, padding=7), nn.LeakyReLU(0.2), nn.Conv1d(width, 1, 3, padding=1),
        )

    def forward(self, wav):
        return self.net(wav)


def speech(n):
    """Voiced-like waveforms with a fixed phase and a mel-like conditioning of frequency and loudness."""
    t = torch.arange(FRAMES * HOP) / 2000.0
    f0 = 90.0 + 60.0 * torch.rand(n, 1)
    loud = 0.2 + 0.5 * torch.rand(n, 1)
    wav = loud * (torch.sin(2 * math.pi * f0 * t) + 0.3 * torch.sin(4 * math.pi * f0 * t)) / 1.3
    frames = wav.view(n, FRAMES, HOP)
    mel = frames @ torch.linalg.qr(torch.randn(HOP, BANDS, generator=torch.Generator().manual_seed(0)))[0]
    return mel.transpose(1, 2).to(device), wav[:, None].to(device)


gen, disc = Generator().to(device), Discriminator().to(device)
g_step = DynamicScale(torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.8, 0.99)))
d_step = DynamicScale(torch.optim.Adam(disc.parameters(), lr=5e-4, betas=(0.8, 0.99)))

for it in range(STEPS):
    mel, wav = speech(BATCH)
    with torch.autocast(device_type=device, dtype=torch.float16):
        fake = gen(mel)
        real_score, fake_score = disc(wav), disc(fake.detach())
        d_loss = (real_score.float() - 1).square().mean() + fake_score.float().square().mean()
    d_ok = d_step.step(d_loss)
    with torch.autocast(device_type=device, dtype=torch.float16):
        adv = (disc(fake).float() - 1).square().mean()
        recon = F.mse_loss(fake.float(), wav)
        g_loss = 100.0 * recon + adv
    g_ok = g_step.step(g_loss)
    if it % 10 == 0 or it == STEPS - 1:
        print(f"it {it:2d} d {d_loss.item():.4f} adv {adv.item():.4f} mse {recon.item():.4f} ok {d_ok} {g_ok} scale {g_step.scale:g}")

with torch.no_grad():
    mel, wav = speech(128)
    l1 = F.l1_loss(gen(mel), wav).item()
print(f"test l1 {l1:.4f} (signal mean abs {wav.abs().mean().item():.4f})")
