"""Two tone-like speakers from one channel: masks on a spectrogram, with a log-spectral loss."""

import torch
from torch import nn

torch.manual_seed(47)
device = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, WINDOW, HOP, STEPS, BATCH = 2048, 128, 64, 160, 8
window = torch.hann_window(WINDOW, device=device)
BINS = WINDOW // 2 + 1


def voices(n):
    """A low voice and a high voice with harmonics, each with pauses."""
    t = torch.arange(LENGTH) / 8000
    out = []
    for low, high in ((120, 240), (260, 480)):
        pitch = low + (high - low) * torch.rand(n, 1)
        glide = 1 + 0.15 * torch.sin(2 * torch.pi * (1 + 3 * torch.rand(n, 1)) * t)
        phase = 2 * torch.pi * (pitch * glide).cumsum(1) / 8000
        tone = sum(torch.sin(k * phase) / k for k in range(1, 7))
        speech = (torch.sin(2 * torch.pi * (3 * torch.rand(n, 1) + 2) * t + 6 * torch.rand(n, 1)) > -0.5).float()
        out.append(0.05 * tone * speech)
    return torch.stack(out, 1).to(device)


def spectrum(wave):
    flat = torch.stft(wave.reshape(-1, LENGTH), WINDOW, HOP, window=window, return_complex=True)
    return flat.reshape(*wave.shape[:-1], BINS, -1).transpose(-1, -2)


class Separator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.enter = nn.Linear(BINS, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.SiLU(), nn.Conv1d(width, width, 1)) for _ in range(3)
        )
        self.masks = nn.Linear(width, 2 * BINS)

    def forward(self, power):
        x = self.enter((power + 1e-6).log() / 4 + 1).transpose(1, 2)
        for block in self.blocks:
            x = x + block(x)
        masks = self.masks(x.transpose(1, 2)).unflatten(-1, (2, BINS)).float()
        return masks.softmax(2).transpose(1, 2)


def pack(tensor):
    """Activations wait for the backward at half their size."""
    if tensor.dtype is torch.float32 and not isinstance(tensor, nn.Parameter):
        return tensor.dtype, tensor.to(torch.float16)
    return tensor.dtype, tensor


def unpack(packed):
    return packed[1].to(packed[0])


def log_spectral(estimate, target):
    return ((estimate + 1e-8).log() - (target + 1e-8).log()).abs().mean()


model = Separator().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
train, test = voices(256), voices(64)
for step in range(STEPS):
    sources = train[torch.randint(len(train), (BATCH,), device=device)]
    target = spectrum(sources).abs().square()
    mixed = spectrum(sources.sum(1) + 1e-3 * torch.randn(BATCH, LENGTH, device=device)).abs().square()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        with torch.autocast("cuda", dtype=torch.float16):
            masks = model(mixed)
        estimate = masks.square() * mixed[:, None]
        loss = log_spectral(estimate, target)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 32 == 31:
        print(f"step {step + 1} loss {loss.item():.4f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    mixture = spectrum(test.sum(1))
    masks = model(mixture.abs().square())
    distance = (masks * mixture.abs()[:, None] - spectrum(test).abs()).square().sum()
    distance = distance / spectrum(test).abs().square().sum()
print(f"METRIC {distance.sqrt().item():.5f}")
