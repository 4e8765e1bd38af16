"""Resynthesis of sustained notes (DDSP style): harmonic oscillator bank plus filtered noise.

The network reads loudness and an instrument code per frame, and is trained on multi-resolution spectra.
"""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SR = 16000
N = 4096
HOP = 128
FRAMES = N // HOP
HARMONICS = 10
BANDS = 17
INSTRUMENTS = 6
device = "cuda" if torch.cuda.is_available() else "cpu"


class NoteData:
    """Notes of six instruments: each has its own harmonic profile and breath noise."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        k = np.arange(1, HARMONICS + 1)
        tilt = self.rng.uniform(0.4, 1.6, (INSTRUMENTS, 1))
        self.profile = k**-tilt * self.rng.uniform(0.1, 1.0, (INSTRUMENTS, HARMONICS))
        self.profile /= self.profile.sum(1, keepdims=True)
        self.breath = self.rng.uniform(0.005, 0.02, INSTRUMENTS)

    def batch(self, n):
        inst = self.rng.integers(0, INSTRUMENTS, n)
        f0 = self.rng.uniform(180, 520, (n, 1)) * np.ones((n, FRAMES))
        attack = self.rng.uniform(2, 10, (n, 1))
        loud = self.rng.uniform(0.4, 1.0, (n, 1)) * (1 - np.exp(-np.arange(FRAMES) / attack))
        amp = loud[:, :, None] * self.profile[inst][:, None]
        t = np.arange(N) / SR
        env = np.repeat(amp, HOP, 1)
        phase = 2 * np.pi * f0[:, :1, None] * t[None, :, None] * np.arange(1, HARMONICS + 1)
        wave = (env * np.sin(phase)).sum(2)
        wave += self.breath[inst][:, None] * self.rng.standard_normal((n, N))
        pack = (inst, f0, loud, amp, wave)
        return [torch.as_tensor(a if a.dtype == np.int64 else a.astype(np.float32)).to(device) for a in pack]


class OscillatorBank(nn.Module):
    def forward(self, f0, amplitudes):
        """f0 (B, 1) in Hz, amplitudes (B, FRAMES, K) -> audio (B, N)."""
        t = torch.arange(N, device=amplitudes.device).to(amplitudes.dtype) / SR
        k = torch.arange(1, HARMONICS + 1, device=amplitudes.device)
        phase = 2 * torch.pi * f0.type_as(amplitudes)[:, :, None] * k * t[None, :, None]
        envelope = amplitudes.repeat_interleave(HOP, dim=1)
        return (envelope * torch.sin(phase)).sum(-1)


class FilteredNoise(nn.Module):
    """White noise shaped per frame in the frequency domain."""

    def forward(self, gains):
        noise = torch.rand(gains.size(0), FRAMES, HOP, device=gains.device) * 2 - 1
        spectrum = torch.fft.rfft(noise)
        curve = F.interpolate(gains.float(), size=spectrum.size(-1), mode="linear", align_corners=True)
        return torch.fft.irfft(spectrum * curve, n=HOP).flatten(1)


class Decoder(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.instrument = nn.Embedding(INSTRUMENTS, 16)
        self.trunk = nn.Sequential(
            nn.Linear(17, hidden), nn.LayerNorm(hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden), nn.LeakyReLU()
        )
        self.to_harmonic = nn.Linear(hidden, HARMONICS)
        self.to_noise = nn.Linear(hidden, BANDS)
        self.bank = OscillatorBank()
        self.noise = FilteredNoise()

    def controls(self, inst, loud):
        code = self.instrument(inst)[:, None].expand(-1, FRAMES, -1)
        h = self.trunk(torch.cat([code, loud[..., None]], -1))
        return 0.5 * torch.sigmoid(self.to_harmonic(h) - 2), 0.1 * torch.sigmoid(self.to_noise(h) - 2)

    def forward(self, inst, f0, loud):
        harmonic, gains = self.controls(inst, loud)
        return self.bank(f0[:, :1], harmonic) + self.noise(gains)


def spectral_distance(x, y):
    total = 0.0
    for size in (512, 1024):
        window = torch.hann_window(size, device=x.device)
        a = torch.stft(x, size, size // 4, window=window, return_complex=True).abs()
        b = torch.stft(y, size, size // 4, window=window, return_complex=True).abs()
        total = total + F.l1_loss(a, b) + 0.2 * F.l1_loss(torch.log(a + 1e-2), torch.log(b + 1e-2))
    return total


def train():
    torch.manual_seed(3)
    data = NoteData(3)
    model = Decoder().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 160)
    for it in range(160):
        inst, f0, loud, _, wave = data.batch(8)
        with torch.autocast("cuda", dtype=torch.float16):
            audio = model(inst, f0, loud)
        loss = spectral_distance(audio.float(), wave)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        schedule.step()
        if it % 25 == 0:
            print(f"it {it:3d}  spectral distance {loss.item():.4f}")
    return model, data


@torch.no_grad()
def profile_error(model, data):
    """Mean relative error of the harmonic amplitudes in the sustained part."""
    inst, f0, loud, amp, _ = data.batch(64)
    with torch.autocast("cuda", dtype=torch.float16):
        guess, _ = model.controls(inst, loud)
    guess, amp = guess.float()[:, FRAMES // 2 :], amp[:, FRAMES // 2 :]
    return ((guess - amp).abs().sum() / amp.sum()).item()


if __name__ == "__main__":
    print(f"final metric: {profile_error(*train()):.4f}")
