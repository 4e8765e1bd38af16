"""Keyword spotting on synthetic filterbanks: workers pull weights, push steps to a central store."""
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, FRAMES, BANDS, WORKERS, ROUNDS = 6, 20, 16, 3, 150
templates = torch.randn(WORDS, FRAMES, BANDS)


def utterances(n, generator):
    word = torch.randint(0, WORDS, (n,), generator=generator)
    noise = torch.randn(n, FRAMES, BANDS, generator=generator)
    return (0.5 * templates[word] + 1.4 * noise).to(device), word.to(device)


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(FRAMES * BANDS, 64), nn.ReLU(),
                         nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, WORDS)).to(device)


class Store:
    """Holds the weights that every worker reads; half the bytes on the wire."""

    def __init__(self, model):
        self.lock = threading.Lock()
        self.values = [p.detach().to(torch.bfloat16) for p in model.parameters()]

    def pull(self, model):
        with self.lock, torch.no_grad():
            for p, v in zip(model.parameters(), self.values):
                p.copy_(v)

    def push(self, moves):
        with self.lock:
            for v, m in zip(self.values, moves):
                v.add_(m.to(v.dtype))


def worker(index, store, gate, report):
    model = replicas[index]
    generator = torch.Generator().manual_seed(torch.initial_seed() % 10000 * 10 + index)
    for r in range(ROUNDS):
        store.pull(model)
        x, y = utterances(16, generator)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        gate.wait()
        store.push([-0.004 * g for g in grads])
        gate.wait()
        report[index] = loss.item()
        if index == 0 and r % 30 == 0:
            print(f"round {r} loss {report[0]:.4f}", flush=True)


main_model = build()
replicas = [build() for _ in range(WORKERS)]
store = Store(main_model)
gate = threading.Barrier(WORKERS)
report = [0.0] * WORKERS
threads = [threading.Thread(target=worker, args=(i, store, gate, report)) for i in range(WORKERS)]
for t in threads:
    t.start()
for t in threads:
    t.join()

store.pull(main_model)
x, y = utterances(600, torch.Generator().manual_seed(999))
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    final = F.cross_entropy(main_model(x), y)
print(f"METRIC {final.item():.4f}")
