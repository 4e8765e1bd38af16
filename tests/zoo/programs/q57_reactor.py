"""Mole fractions of species in a reactor, trained as a pipeline of two stages with micro-batches."""

import queue
import threading

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
amp = torch.bfloat16
torch.manual_seed(17)
CONDITIONS, SPECIES, NARROW = 8, 24, 6
STEPS, MICRO, BATCH, TYPICAL = 350, 4, 64, 2e-3
mix = torch.randn(CONDITIONS, NARROW) / 3
stoichiometry = torch.randn(NARROW, SPECIES)


def sample(n):
    """Return conditions and the mole fractions of minor species."""
    x = torch.randn(n, CONDITIONS)
    progress = torch.sin(1.2 * x @ mix) + 0.5 * torch.tanh(x @ mix).roll(1, 1)
    return x.to(device), (TYPICAL * torch.tanh(progress @ stoichiometry / 2)).to(device)


first = nn.Sequential(
    nn.Linear(CONDITIONS, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, NARROW)
).to(device)
second = nn.Sequential(nn.Linear(NARROW, 64), nn.Tanh(), nn.Linear(64, SPECIES)).to(device)
test = sample(3000)
batches = [[sample(BATCH) for _ in range(MICRO)] for _ in range(STEPS)]
ahead, back = queue.Queue(MICRO), queue.Queue()


def encode():
    """First stage: sends activations ahead, waits for their gradients, makes its own step."""
    optimizer = torch.optim.Adam(first.parameters(), lr=3e-3, eps=1e-12)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        optimizer.zero_grad()
        sent = []
        for x, _ in batches[step]:
            with torch.autocast("cuda", dtype=amp):
                sent.append(first(x))
            ahead.put(sent[-1].detach())
        for h in sent:
            h.backward(back.get().to(h.dtype))
        optimizer.step()
        schedule.step()


stage = threading.Thread(target=encode)
stage.start()
optimizer = torch.optim.Adam(second.parameters(), lr=3e-3, eps=1e-12)
for step in range(STEPS):
    optimizer.zero_grad()
    total = 0.0
    for _, y in batches[step]:
        h = ahead.get().requires_grad_()
        with torch.autocast("cuda", dtype=amp):
            loss = nn.functional.mse_loss(TYPICAL * second(h), y) / MICRO
        loss.backward()
        back.put(h.grad.to(torch.float16))
        total += loss.item()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:3d}  loss {total / TYPICAL**2:.4f}")
stage.join()

with torch.no_grad(), torch.autocast("cuda", dtype=amp):
    out = TYPICAL * second(first(test[0])).float()
print(f"METRIC {((out - test[1]).norm() / test[1].norm()).item():.4f}")
