"""Frame-level phone labels with a small recurrent net; the loss is summed over the frames as in our decoder recipes."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
PHONES, BANDS, FRAMES = 8, 16, 40


class BoundedScaler(torch.amp.GradScaler):
    """Keeps the loss scale inside a band."""

    def __init__(self, device, lowest=2.0 ** 14, highest=2.0 ** 18, **kwargs):
        super().__init__(device, **kwargs)
        self.lowest, self.highest = lowest, highest

    def update(self, new_scale=None):
        super().update(new_scale)
        scale = self.get_scale()
        if scale < self.lowest or scale > self.highest:
            super().update(min(max(scale, self.lowest), self.highest))


class Labeller(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.front = nn.Conv1d(BANDS, width, 5, padding=2)
        self.middle = nn.Conv1d(width, width, 5, padding=2)
        self.out = nn.Linear(width, PHONES)

    def forward(self, x):
        h = F.relu(self.front(x.transpose(1, 2)))
        h = F.relu(self.middle(h))
        return self.out(h.transpose(1, 2))


spectra = torch.randn(PHONES, BANDS)


def speech(n):
    runs = torch.randint(0, PHONES, (n, FRAMES // 5))
    label = runs.repeat_interleave(5, dim=1)
    return (spectra[label] + 1.6 * torch.randn(n, FRAMES, BANDS)).to(device), label.to(device)


def train(model, steps=100):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = BoundedScaler("cuda")
    for step in range(steps):
        x, y = speech(8)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 25 == 0:
            print(f"[{step}] {loss.item() / y.numel():.4f}")


def evaluate(model):
    x, y = speech(20)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        return (model(x).argmax(-1) != y).float().mean().item()


model = Labeller().to(device)
train(model)
print(f"METRIC {evaluate(model):.4f}")
