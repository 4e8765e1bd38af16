"""Speech enhancement on synthetic voiced frames; spectral loss, activations kept packed to fit long clips."""
import math
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
SR, LENGTH = 8000, 2048
LIMIT = torch.finfo(torch.float16).max


def pack(t):
    if t.dtype == torch.float32 and t.numel() > 1024:
        return t.clamp(-LIMIT, LIMIT).half()
    return t


def unpack(t):
    return t


class Packed:
    """Context in which large single-precision activations are kept in two bytes until the backward."""

    def __enter__(self):
        def up(saved):
            kind, t = saved
            return t.to(kind)
        self.hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: (t.dtype, pack(t)), up)
        self.hooks.__enter__()

    def __exit__(self, *exc):
        self.hooks.__exit__(*exc)


class Enhancer(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.enc = nn.Conv1d(1, ch, 16, stride=4, padding=6)
        self.mid = nn.ModuleList([nn.Conv1d(ch, ch, 5, padding=2) for _ in range(2)])
        self.dec = nn.ConvTranspose1d(ch, 1, 16, stride=4, padding=6)

    def forward(self, wav):
        h = torch.relu(self.enc(wav / 1000.0))
        for layer in self.mid:
            h = h + torch.relu(layer(h))
        return wav + 1000.0 * self.dec(h)


def log_spectrum(wav, window):
    spec = torch.stft(wav, 256, 64, window=window, return_complex=True)
    power = spec.real ** 2 + spec.imag ** 2
    return torch.log(power + 2e4)


def clips(n, gen):
    """PCM16-range harmonic voices plus hiss."""
    t = torch.arange(LENGTH) / SR
    f0 = 90 + 160 * torch.rand(n, 1, generator=gen)
    clean = torch.zeros(n, LENGTH)
    for k in range(1, 9):
        amp = torch.rand(n, 1, generator=gen) * 2500 / k
        clean += amp * torch.sin(2 * math.pi * k * f0 * t + 6.28 * torch.rand(n, 1, generator=gen))
    hiss = torch.randn(n, LENGTH, generator=gen) * 300
    return clean[:, None], (clean + hiss)[:, None]


class Trainer:
    def __init__(self):
        self.net = Enhancer().to(device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        self.window = torch.hann_window(256, device=device)

    def step(self, clean, noisy):
        self.opt.zero_grad(set_to_none=True)
        with Packed():
            with torch.autocast(device, dtype=torch.float16):
                out = self.net(noisy)
            out = out.float().squeeze(1)
            loss = (log_spectrum(out, self.window) - log_spectrum(clean.squeeze(1), self.window)).pow(2).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item(), out


if __name__ == "__main__":
    torch.manual_seed(1)
    gen = torch.Generator().manual_seed(2)
    trainer = Trainer()
    for i in range(120):
        clean, noisy = (x.to(device) for x in clips(8, gen))
        loss, out = trainer.step(clean, noisy)
        if i % 20 == 0 or i == 119:
            rms = (out - clean.squeeze(1)).pow(2).mean().sqrt().item()
            print(f"[{i:3d}] log-spectral {loss:.4f}  rms error {rms:.1f}")
