"""Remaining useful life of bearings (hours) from vibration features, with an evaluator in the background.

Every few steps the trainer hands a snapshot to the evaluator thread, which scores it on the validation set with a
half-precision copy of the net and keeps the best one. What is shipped is the best snapshot.
"""

import copy
import queue
import threading

import torch
import torch.nn.functional as F
from torch import nn

BANDS, STEPS, BATCH, EVERY = 32, 240, 128, 20

torch.manual_seed(23)
device = "cuda" if torch.cuda.is_available() else "cpu"

profile = torch.rand(BANDS) * 2
twist = torch.randn(BANDS)


def bearings(n):
    """Band energies of n bearings and the hours that they have left."""
    wear = torch.rand(n, 1)
    load = torch.rand(n, 1)
    bands = profile * wear**2 * (0.5 + load) + 0.3 * torch.sin(3 * wear + twist) + 0.15 * torch.randn(n, BANDS)
    life = 160 * (1 - wear) / (0.6 + load) + 9 * torch.randn(n, 1)
    return bands.to(device), life.to(device)


def build():
    return nn.Sequential(nn.Linear(BANDS, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(device)


class Evaluator(threading.Thread):
    """Scores snapshots and remembers the best one."""

    def __init__(self, model, data):
        super().__init__(daemon=True)
        self.model = copy.deepcopy(model).half().eval()
        self.batches = [(x.half(), y) for x, y in zip(data[0].split(256), data[1].split(256))]
        self.snapshots = queue.Queue()
        self.best = float("inf")
        self.best_state = copy.deepcopy(model.state_dict())
        self.history = []

    @torch.no_grad()
    def score(self, state):
        """Sum of the squared errors over the validation set."""
        self.model.load_state_dict(state)
        total = 0.0
        for x, life in self.batches:
            hours = self.model(x)
            total = total + (hours.float() - life).square().sum()
        return total.item()

    def run(self):
        while True:
            item = self.snapshots.get()
            if item is None:
                return
            step, state = item
            score = self.score(state)
            self.history.append((step, score))
            if score < self.best:
                self.best, self.best_state = score, state


model = build()
nn.init.constant_(model[-1].bias, 60.0)
evaluator = Evaluator(model, bearings(2048))
evaluator.start()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
for step in range(1, STEPS + 1):
    x, life = bearings(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        hours = model(x)
        loss = F.smooth_l1_loss(hours.float(), life, beta=10.0)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % EVERY == 0:
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        evaluator.snapshots.put((step, state))
evaluator.snapshots.put(None)
evaluator.join()
print("last scores", evaluator.history[-2:])

model.load_state_dict(evaluator.best_state)
with torch.no_grad():
    x, life = bearings(6000)
    print(f"metric {(model(x) - life).abs().mean().item():.4f}")
