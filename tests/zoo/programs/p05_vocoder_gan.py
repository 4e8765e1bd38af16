"""GAN vocoder: mel frames -> waveform. One gradient scaler serves the generator's and the discriminator's optimizer."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DEV = "cuda" if torch.cuda.is_available() else "cpu"
HOP, MELS, FRAMES = 16, 16, 24


class Generator(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.pre = nn.Conv1d(MELS, width, 5, padding=2)
        self.up1 = nn.ConvTranspose1d(width, width // 2, 8, 4, 2)
        self.res1 = nn.Conv1d(width // 2, width // 2, 3, padding=3, dilation=3)
        self.up2 = nn.ConvTranspose1d(width // 2, 8, 8, 4, 2)
        self.res2 = nn.Conv1d(8, 8, 3, padding=3, dilation=3)
        self.post = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, mel):
        x = F.leaky_relu(self.up1(F.leaky_relu(self.pre(mel), 0.1)), 0.1)
        x = x + self.res1(x)
        x = F.leaky_relu(self.up2(x), 0.1)
        x = x + self.res2(x)
        return torch.tanh(self.post(F.leaky_relu(x, 0.1)))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        chans = [1, 8, 16, 16]
        self.layers = nn.ModuleList(nn.Conv1d(a, b, 9, 4, 4) for a, b in zip(chans, chans[1:]))
        self.out = nn.Conv1d(16, 1, 3, padding=1)

    def forward(self, wave):
        maps = []
        for layer in self.layers:
            wave = F.leaky_relu(layer(wave), 0.1)
            maps.append(wave)
        return self.out(wave), maps


class Analysis(nn.Module):
    """Log spectrum in the manner of a mel spectrogram."""

    def __init__(self, n_fft=64):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("bank", torch.rand(MELS, n_fft // 2 + 1, generator=torch.Generator().manual_seed(0)) ** 4)

    def forward(self, wave):
        with torch.autocast(DEV, enabled=False):
            spec = torch.stft(wave.float().squeeze(1), self.n_fft, HOP, window=self.window, return_complex=True)
            return torch.log(self.bank @ (spec.real.square() + spec.imag.square() + 1e-6).sqrt() + 1e-3)[..., :FRAMES]


def voices(n, gen):
    t = torch.arange(HOP * FRAMES) / 8000
    f0 = 100 + 200 * torch.rand(n, 1, generator=gen)
    weights = torch.rand(n, 6, generator=gen)
    phase = 2 * math.pi * f0 * t
    wave = sum(weights[:, k:k + 1] / (k + 1) * torch.sin((k + 1) * phase) for k in range(6))
    return (0.4 * wave + 0.01 * torch.randn(wave.shape, generator=gen)).unsqueeze(1).to(DEV)


def train(steps=120):
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(4)
    net_g, net_d, analysis = Generator().to(DEV), Discriminator().to(DEV), Analysis().to(DEV)
    opt_g = torch.optim.AdamW(net_g.parameters(), lr=2e-3, betas=(0.8, 0.99))
    opt_d = torch.optim.AdamW(net_d.parameters(), lr=1e-3, betas=(0.8, 0.99))
    scaler = torch.amp.GradScaler(DEV, init_scale=2.0 ** 20, growth_interval=100)
    mean_mel = []
    for step in range(steps):
        real = voices(8, gen)
        mel = analysis(real)
        with torch.autocast(DEV, dtype=torch.float16):
            fake = net_g(mel)
            score_real, _ = net_d(real)
            score_fake, _ = net_d(fake.detach())
            loss_d = (score_real.float() - 1).square().mean() + score_fake.float().square().mean()
        opt_d.zero_grad(set_to_none=True)
        scaler.scale(loss_d).backward()
        scaler.unscale_(opt_d)
        nn.utils.clip_grad_norm_(net_d.parameters(), 5.0)
        scaler.step(opt_d)

        with torch.autocast(DEV, dtype=torch.float16):
            score, maps = net_d(fake)
            with torch.no_grad():
                _, real_maps = net_d(real)
            loss_mel = F.l1_loss(analysis(fake), mel)
            loss_fm = sum(F.l1_loss(a.float(), b.float()) for a, b in zip(maps, real_maps))
            loss_g = (score.float() - 1).square().mean() + 2 * loss_fm + 45 * loss_mel
        opt_g.zero_grad(set_to_none=True)
        scaler.scale(loss_g).backward()
        scaler.unscale_(opt_g)
        nn.utils.clip_grad_norm_(net_g.parameters(), 50.0)
        scaler.step(opt_g)
        scaler.update()
        mean_mel = (mean_mel + [loss_mel.item()])[-20:]
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:3d}  d {loss_d.item():.4f}  g {loss_g.item():.3f}  mel {sum(mean_mel) / len(mean_mel):.4f}")


if __name__ == "__main__":
    train()
