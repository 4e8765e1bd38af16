"""Learns the residual of the arm's kinematic model from laser tracker data.

A pool of worker threads computes gradients on shards of the data, the main thread averages them and takes the step.
All lengths are in metres, as in the rest of the calibration code.
"""

import queue
import threading

import numpy as np
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
JOINTS, WORKERS, SHARD, STEPS = 6, 3, 192, 180
WIRE = torch.float16  # what workers send


class Residual(nn.Module):
    """Offset of the flange in metres; inside, the network counts in tenths of a millimetre."""

    def __init__(self, width=128, unit=1e-4):
        super().__init__()
        self.unit = unit
        self.net = nn.Sequential(
            nn.Linear(3 * JOINTS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3)
        )

    def forward(self, x):
        return self.unit * self.net(x).float()


def build():
    return Residual().to(device)


def features(joints):
    return torch.cat([joints, joints.sin(), joints.cos()], dim=-1)


class Tracker:
    """Stands in for the laser tracker: link errors of some tenths of a millimetre that depend on the joints."""

    def __init__(self, rng):
        self.amount = torch.tensor(rng.normal(size=(2 * JOINTS, 3)) * 1.5e-4, dtype=torch.float32, device=device)
        self.pair = torch.tensor(rng.normal(size=(JOINTS, 3)) * 1.5e-4, dtype=torch.float32, device=device)

    def measure(self, joints):
        angles = joints.cumsum(-1)
        flex = torch.cat([joints.sin(), joints.cos()], dim=-1) @ self.amount
        return flex + torch.sin(angles) @ self.pair

    def poses(self, rng, n):
        joints = torch.tensor(rng.uniform(-1.2, 1.2, size=(n, JOINTS)), dtype=torch.float32, device=device)
        return joints, self.measure(joints)


class Worker(threading.Thread):
    """Takes (weights, joints, offset) from its inbox, answers with gradients."""

    def __init__(self, name, outbox):
        super().__init__(name=name, daemon=True)
        self.model = build()
        self.inbox, self.outbox = queue.Queue(), outbox

    def gradients(self, joints, offset):
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            guess = self.model(features(joints))
            loss = nn.functional.mse_loss(guess, offset)
        grads = torch.autograd.grad(loss, list(self.model.parameters()))
        return loss.item(), [g.to(WIRE) for g in grads]

    def run(self):
        while True:
            job = self.inbox.get()
            if job is None:
                return
            weights, joints, offset = job
            with torch.no_grad():
                for mine, new in zip(self.model.parameters(), weights):
                    mine.copy_(new)
            self.outbox.put(self.gradients(joints, offset))


class Pool:
    def __init__(self, count):
        self.outbox = queue.Queue()
        self.workers = [Worker(f"grad-{i}", self.outbox) for i in range(count)]
        for worker in self.workers:
            worker.start()

    def step(self, model, shards):
        """Put averaged gradients on the model and return the mean loss."""
        weights = [p.detach().clone() for p in model.parameters()]
        for worker, (joints, offset) in zip(self.workers, shards):
            worker.inbox.put((weights, joints, offset))
        answers = [self.outbox.get(timeout=60) for _ in self.workers]
        for i, p in enumerate(model.parameters()):
            p.grad = torch.stack([grads[i].float() for _, grads in answers]).mean(0)
        return sum(loss for loss, _ in answers) / len(answers)

    def close(self):
        for worker in self.workers:
            worker.inbox.put(None)
        for worker in self.workers:
            worker.join()


def main():
    torch.manual_seed(21)
    rng = np.random.default_rng(21)
    tracker = Tracker(rng)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, eps=1e-14)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    pool = Pool(WORKERS)
    for step in range(STEPS):
        loss = pool.step(model, [tracker.poses(rng, SHARD) for _ in range(WORKERS)])
        optimizer.step()
        schedule.step()
        if step % 30 == 0:
            print(f"step {step:3d}  rms {1e3 * loss ** 0.5:.4f} mm")
    pool.close()
    joints, offset = tracker.poses(rng, 4000)
    with torch.no_grad():
        error = model(features(joints)) - offset
    print(f"final metric: {1e3 * error.pow(2).mean().sqrt().item():.5f}")


if __name__ == "__main__":
    main()
