"""Voice commands from raw audio with a trainable filterbank; batches are bucketed by the length of the clips."""

import math

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
RATE, SAMPLES = 2000, 1600
LONG = [(180, 260), (180, 420), (300, 260), (300, 420)]  # two-tone commands: start and end pitch
SHORT = [(220, 360), (360, 220), (520, 640), (640, 520)]


def clips(n, short):
    """Commands as gliding tones; what is shorter than the window is padded with zeros at its end."""
    kind = torch.randint(4, (n,))
    table = torch.tensor(SHORT if short else LONG, dtype=torch.float)
    length = torch.randint(700, 1000, (n,)) if short else torch.full((n,), SAMPLES)
    t = torch.arange(SAMPLES)[None] / RATE
    share = torch.arange(SAMPLES)[None] / length[:, None]
    pitch = table[kind, 0, None] + (table[kind, 1] - table[kind, 0])[:, None] * (share > 0.5)
    wave = torch.sin(2 * math.pi * pitch * t + 6.28 * torch.rand(n, 1)) * (0.3 + 0.5 * torch.rand(n, 1))
    wave = wave + 0.4 * torch.randn(n, SAMPLES)
    wave = torch.where(share < 1, wave, torch.zeros(()))
    return wave, kind + (4 if short else 0)


class Filterbank(nn.Module):
    """Pairs of cosine and sine filters, trained with the rest."""

    def __init__(self, n_filters=20, width=64, hop=64):
        super().__init__()
        freq = torch.linspace(80, 900, n_filters)[:, None]
        t = torch.arange(width)[None] / RATE
        window = torch.hann_window(width)[None] / width * 4
        self.real = nn.Parameter((torch.cos(2 * math.pi * freq * t) * window)[:, None])
        self.imag = nn.Parameter((torch.sin(2 * math.pi * freq * t) * window)[:, None])
        self.hop = hop

    def forward(self, wave):
        re = F.conv1d(wave[:, None], self.real, stride=self.hop)
        im = F.conv1d(wave[:, None], self.imag, stride=self.hop)
        magnitude = torch.sqrt(re * re + im * im + 1e-8)
        return torch.log1p(10 * magnitude)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = Filterbank()
        self.conv = nn.Conv1d(20, 32, 3, padding=1)
        self.fc = nn.Linear(64, 8)

    def forward(self, wave):
        h = F.relu(self.conv(self.bank(wave)))
        half = h.shape[2] // 4
        return self.fc(torch.cat([h[:, :, :half].mean(2), h.mean(2)], 1))


def main():
    torch.manual_seed(3)
    model = Net().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(200):
        wave, label = clips(24, short=step % 5 == 4)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(wave.to(device)), label.to(device))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 50 == 48:
            print(f"{step + 1:4d} loss {loss.item():.3f}")

    hits = []
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        for short in (False, True):
            wave, label = clips(300, short)
            hits.append((model(wave.to(device)).argmax(1).cpu() == label).float().mean().item())
    print(f"RESULT {sum(hits) / 2:.4f}")


if __name__ == "__main__":
    main()
