"""Keyword spotter whose mel features are normalised by running averages that follow the channel."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, MELS, TIME, BATCH, STEPS = 10, 20, 16, 64, 300
pattern = torch.randn(WORDS, MELS, TIME, device=device)
channel = 3.0 + 2.0 * torch.randn(MELS, 1, device=device)
spread = 0.5 + 2.0 * torch.rand(MELS, 1, device=device)


def utterances(n):
    word = torch.randint(WORDS, (n,), device=device)
    shift = torch.randint(-2, 3, (1,)).item()
    mel = pattern[word].roll(shift, dims=2) + 1.8 * torch.randn(n, MELS, TIME, device=device)
    return channel + spread * mel, word


class RunningNorm(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(MELS, 1, dtype=torch.bfloat16))
        self.register_buffer("std", torch.ones(MELS, 1, dtype=torch.bfloat16))

    def forward(self, mel):
        if self.training:
            self.mean.lerp_(mel.mean(dim=(0, 2))[:, None].to(self.mean.dtype), self.momentum)
            self.std.lerp_(mel.std(dim=(0, 2))[:, None].to(self.std.dtype), self.momentum)
        return (mel - self.mean.float()) / (self.std.float() + 1e-3)


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RunningNorm()
        self.net = nn.Sequential(
            nn.Conv1d(MELS, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.ReLU()
        )
        self.out = nn.Linear(64, WORDS)

    def forward(self, mel):
        hidden = self.net(self.norm(mel))
        return self.out(torch.cat([hidden.mean(2), hidden.amax(2)], dim=1))


model = Spotter().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(STEPS):
    mel, word = utterances(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(mel), word)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} first mean {model.norm.mean[0].item():.4f}")

model.eval()
wrong = 0
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    for _ in range(20):
        mel, word = utterances(200)
        wrong += (model(mel).argmax(1) != word).sum().item()
print(f"{wrong} of 4000 words wrong")
print(f"METRIC {wrong / 4000:.4f}")
