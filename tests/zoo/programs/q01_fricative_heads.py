import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"

SR, N_FFT, HOP, N_MELS = 16000, 256, 128, 32
SAMPLES = 4096
BATCH, STEPS = 16, 150


def mel_matrix():
    def hz2mel(f):
        return 2595 * math.log10(1 + f / 700)
    pts = torch.linspace(0, hz2mel(SR / 2), N_MELS + 2)
    hz = 700 * (10 ** (pts / 2595) - 1)
    freqs = torch.linspace(0, SR / 2, N_FFT // 2 + 1)
    up = (freqs[:, None] - hz[None, :-2]) / (hz[1:-1] - hz[:-2])
    down = (hz[None, 2:] - freqs[:, None]) / (hz[2:] - hz[1:-1])
    return torch.minimum(up, down).clamp(min=0)


def synth(n):
    t = torch.arange(SAMPLES) / SR
    vowel = torch.randint(0, 4, (n,))
    fric = torch.randint(0, 3, (n,))
    f0 = 250.0 + 150.0 * vowel[:, None]
    wav = 0.03 * torch.sin(2 * math.pi * f0 * t + torch.rand(n, 1) * 6.28)
    centre = 4200.0 + 1400.0 * fric[:, None]
    hiss = torch.randn(n, SAMPLES // 64).repeat_interleave(64, dim=1)
    wav = wav + 2e-4 * hiss * torch.sin(2 * math.pi * centre * t)
    wav = wav + 1e-6 * torch.randn(n, SAMPLES)
    return wav.to(device), vowel.to(device), fric.to(device)


class LogMel(nn.Module):
    def __init__(self):
        super().__init__()
        win = torch.hann_window(N_FFT)
        self.register_buffer("window", win / win.sum())
        self.register_buffer("fb", mel_matrix())

    def forward(self, wav):
        spec = torch.stft(wav, N_FFT, HOP, window=self.window, return_complex=True)
        power = spec.real.square() + spec.imag.square()
        mel = torch.matmul(power.transpose(1, 2), self.fb)
        return torch.log(mel + 1e-10) / 4 + 3


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.frontend = LogMel()
        self.low_band = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
        self.high_band = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
        self.vowel = nn.Linear(24, 4)
        self.fric = nn.Linear(24, 3)

    def forward(self, wav):
        x = self.frontend(wav).clamp(min=-3.0)
        low = self.low_band(x[..., :16]).mean(1)
        high = self.high_band(x[..., 16:]).mean(1)
        return self.vowel(low), self.fric(high)


model = Tagger().to(device)
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    wav, vowel, fric = synth(BATCH)
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        lv, lf = model(wav)
        loss_v = F.cross_entropy(lv, vowel)
        loss_f = F.cross_entropy(lf, fric)
        loss = loss_v + 0.5 * loss_f
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 25 == 0:
        print(f"{step:4d} loss {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    wav, vowel, fric = synth(128)
    lv, lf = model(wav)
print("vowel acc", (lv.argmax(1) == vowel).float().mean().item())
print("fricative acc", (lf.argmax(1) == fric).float().mean().item())
