"""Pump diagnosis from band levels: threads run a frozen encoder, a head is trained on standardised features."""
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
BANDS, FEATURES, CLASSES, WORKERS = 48, 64, 4, 4
BATCH, STEPS = 128, 150


def make_recordings(count, signatures):
    """Return the level of each band in dB and the state of the pump."""
    state = torch.randint(CLASSES, (count,))
    level = 75 + torch.randn(count, BANDS) + signatures[state]
    return level, state


class Encoder(nn.Module):
    """Frozen projection from an earlier project."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(BANDS, FEATURES)

    def forward(self, level):
        return self.project(level)


class FeatureStatistics:
    """Mean and spread of each feature, gathered from all workers."""

    def __init__(self):
        self.lock = threading.Lock()
        self.means, self.squares = {}, {}

    def add(self, shard, feature):
        with self.lock:
            self.means[shard] = feature.mean(0)
            self.squares[shard] = (feature * feature).mean(0)

    def finish(self):
        mean = torch.stack([self.means[shard] for shard in sorted(self.means)]).mean(0)
        square = torch.stack([self.squares[shard] for shard in sorted(self.squares)]).mean(0)
        spread = (square - mean * mean).clamp(min=1e-4).sqrt()
        return mean.float(), spread.float()


def encode(shard, level):
    """Encode one shard of the recordings; runs in a thread of its own."""
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        feature = encoder(level.to(device))
    statistics.add(shard, feature)
    return feature


signatures = 0.6 * torch.randn(CLASSES, BANDS)
level, state = make_recordings(4000, signatures)
level_test, state_test = make_recordings(4000, signatures)
encoder = Encoder().to(device).eval()
statistics = FeatureStatistics()
with ThreadPoolExecutor(WORKERS) as pool:
    shards = level.chunk(WORKERS)
    feature = torch.cat(list(pool.map(encode, range(WORKERS), shards)))
mean, spread = statistics.finish()


def standardise(feature):
    return (feature.float() - mean) / spread


state = state.to(device)
head = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES)).to(device)
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
for step in range(STEPS):
    rows = torch.randint(len(feature), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(head(standardise(feature[rows])), state[rows])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

head.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    guess = head(standardise(encoder(level_test.to(device)))).float()
    log_loss = nn.functional.cross_entropy(guess, state_test.to(device))
print("accuracy", (guess.argmax(1).cpu() == state_test).float().mean().item())
print("metric", round(log_loss.item(), 5))
