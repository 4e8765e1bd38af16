# Streaming harmonic synthesiser: the oscillator phase is carried from chunk to chunk, a small net predicts harmonic gains.
import math
import torch
import torch.nn as nn

torch.manual_seed(5)
DEV = "cuda" if torch.cuda.is_available() else "cpu"
SR, CHUNK, HARM, VOICES = 16000, 256, 8, 8


class Oscillator(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = torch.zeros(VOICES, 1, device=DEV)

    def forward(self, f0):                       # f0: voices x samples, Hz
        inc = 2 * math.pi * f0 / SR
        ph = self.phase + torch.cumsum(inc, -1)
        self.phase = ph[:, -1:].detach()
        k = torch.arange(1, HARM + 1, device=DEV).view(1, -1, 1)
        return torch.sin(ph.unsqueeze(1) * k)


class Synth(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, HARM))
        self.osc = Oscillator()

    def forward(self, cond, f0):
        gains = self.net(cond)
        waves = self.osc(f0)
        self.osc.phase = self.osc.phase.to(gains.dtype)   # keep the stream's state in the compute type
        return (gains.unsqueeze(-1) * waves).sum(1)


class Reference:
    def __init__(self):
        self.phase = torch.zeros(VOICES, 1, dtype=torch.float64)
        self.w = torch.randn(4, HARM, dtype=torch.float64) * 0.4

    def __call__(self, cond, f0):
        ph = self.phase + torch.cumsum(2 * math.pi * f0.double() / SR, -1)
        self.phase = ph[:, -1:] % (2 * math.pi)
        k = torch.arange(1, HARM + 1).view(1, -1, 1)
        return ((cond.double() @ self.w).unsqueeze(-1) * torch.sin(ph.unsqueeze(1) * k)).sum(1).float()


synth, ref = Synth().to(DEV), Reference()
opt = torch.optim.Adam(synth.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler(DEV, init_scale=512.0)
pitch = 110 * 2 ** (torch.rand(VOICES, 1) * 2)
for n in range(200):
    f0 = pitch * (1 + 0.01 * torch.sin(torch.linspace(n, n + 1, CHUNK)))
    cond = torch.randn(VOICES, 4)
    target = ref(cond, f0).to(DEV)
    with torch.autocast(DEV, dtype=torch.float16):
        audio = synth(cond.to(DEV), f0.to(DEV))
        loss = nn.functional.l1_loss(audio, target)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if n % 25 == 0 or n == 199:
        print(f"chunk {n:3d} loss {loss.item():.4f}")
