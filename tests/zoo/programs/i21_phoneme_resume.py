"""Predict phoneme durations from phoneme, context and speaker; train, take a snapshot, and finish from it."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
PHONEMES, SPEAKERS, BATCH = 200, 60, 64
FIRST, REST = 260, 30
LONG, PACE = torch.randn(PHONEMES), torch.randn(SPEAKERS)
USE = 1.0 / torch.arange(1, PHONEMES + 1).float()  # some phonemes in context are rare


def batch(count):
    phoneme = torch.multinomial(USE, count, replacement=True)
    speaker = torch.randint(SPEAKERS, (count,))
    stress = torch.rand(count, 1)
    length = 0.6 * LONG[phoneme] + 0.4 * PACE[speaker] + stress[:, 0] * LONG[phoneme].sign()
    return phoneme.to(device), speaker.to(device), stress.to(device), length.to(device)


class Durations(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.phoneme = nn.Embedding(PHONEMES, width)
        self.speaker = nn.Embedding(SPEAKERS, width)
        self.net = nn.Sequential(nn.Linear(2 * width + 1, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, phoneme, speaker, stress):
        return self.net(torch.cat([self.phoneme(phoneme), self.speaker(speaker), stress], 1)).squeeze(1)


def build():
    model = Durations().to(device)
    return model, torch.optim.Adam(model.parameters(), lr=4e-3), torch.amp.GradScaler("cuda")


def train(model, optimizer, scaler, steps):
    for _ in range(steps):
        phoneme, speaker, stress, length = batch(BATCH)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.smooth_l1_loss(model(phoneme, speaker, stress), length)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def compact(value):
    """Return a state with its floating tensors in half precision, for a small snapshot."""
    if isinstance(value, torch.Tensor):
        return value.to(torch.float16) if value.is_floating_point() and value.dim() else value
    if isinstance(value, dict):
        return {key: compact(one) for key, one in value.items()}
    return value


model, optimizer, scaler = build()
train(model, optimizer, scaler, FIRST)
saved = {
    "model": compact(model.state_dict()),
    "optimizer": compact(optimizer.state_dict()),
    "scaler": scaler.state_dict(),
}
saved = copy.deepcopy(saved)

model, optimizer, scaler = build()
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
scaler.load_state_dict(saved["scaler"])
train(model, optimizer, scaler, REST)

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    phoneme, speaker, stress, length = batch(4096)
    error = (model(phoneme, speaker, stress).float() - length).abs().mean()
print(f"final metric: {error.item():.4f}")
