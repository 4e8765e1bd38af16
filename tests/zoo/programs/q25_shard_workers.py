import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"

WORLD, BATCH, DIM, STEPS = 2, 64, 40, 180


def build():
    return nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)


def contrastive(a, b, tau=0.3):
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    logits = a @ b.t() / tau
    return F.cross_entropy(logits, torch.arange(len(a), device=a.device))


class Replica(threading.Thread):
    def __init__(self, net, scaler, jobs, results):
        super().__init__(daemon=True)
        self.net, self.scaler, self.jobs, self.results = net, scaler, jobs, results

    def run(self):
        factor = self.scaler.scale(torch.ones((), device=device))
        while True:
            job = self.jobs.get()
            if job is None:
                return
            weights, va, vb = job
            self.net.load_state_dict(weights)
            self.net.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = contrastive(self.net(va), self.net(vb))
            (loss * factor).backward()
            self.results.put((loss.item(), [p.grad for p in self.net.parameters()]))


basis = torch.randn(10, DIM)


def two_views(n):
    z = torch.randn(n, 10) @ basis
    return [(z + 1.6 * torch.randn(n, DIM)).to(device) for _ in range(2)]


model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12, growth_interval=12)

jobs = [queue.Queue() for _ in range(WORLD)]
results = [queue.Queue() for _ in range(WORLD)]
workers = [Replica(build(), scaler, jobs[r], results[r]) for r in range(WORLD)]
for w in workers:
    w.start()

for step in range(STEPS):
    weights = model.state_dict()
    for r in range(WORLD):
        jobs[r].put((weights, *two_views(BATCH)))
    answers = [results[r].get() for r in range(WORLD)]
    for i, p in enumerate(model.parameters()):
        p.grad = sum(grads[i] for _, grads in answers) / WORLD
    scaler.step(optimizer)
    scaler.update()
    if step % 30 == 0:
        print(f"step {step:4d}  loss {sum(l for l, _ in answers) / WORLD:.4f}")

for r in range(WORLD):
    jobs[r].put(None)
for w in workers:
    w.join()

with torch.no_grad():
    va, vb = two_views(512)
    final = contrastive(model(va), model(vb))
    a, b = F.normalize(model(va), dim=1), F.normalize(model(vb), dim=1)
    hit = ((a @ b.t()).argmax(1) == torch.arange(512, device=device)).float().mean()
print(f"final loss {final.item():.4f}  retrieval@1 {hit.item():.3f}")
