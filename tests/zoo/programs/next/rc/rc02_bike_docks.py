"""Demand at bike-share docks, trained against a parameter server that lives in a thread of its own.

The trainer pulls the weights, works out the gradients of a batch and pushes them; the server applies them.
"""

import queue
import threading

import torch
import torch.nn.functional as F
from torch import nn

DOCKS, FEATURES, STEPS, BATCH = 12, 20, 300, 128

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"

mix = torch.randn(FEATURES, 24) / FEATURES**0.5
out = torch.randn(24, DOCKS) / 24**0.5


def hours(n):
    """Weather, calendar and recent flows of n hours, and the demand at each dock in the next one."""
    x = torch.randn(n, FEATURES)
    y = torch.relu(x @ mix * 1.5) @ out + 0.3 * torch.sin(2 * x[:, :DOCKS])
    return x.to(device), (y + 0.05 * torch.randn(n, DOCKS)).to(device)


def build():
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, DOCKS)
    ).to(device)


class ParameterServer(threading.Thread):
    """Holds the weights and the momentum; one message in is a set of gradients, one out a set of weights."""

    def __init__(self, model, lr=0.02, momentum=0.9, wire=torch.bfloat16):
        super().__init__(daemon=True)
        self.lr, self.momentum = lr, momentum
        self.inbox, self.outbox = queue.Queue(), queue.Queue()
        # the wire format is that of the workers: half the traffic
        self.weights = {k: p.detach().to(wire).clone() for k, p in model.named_parameters()}
        self.velocity = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
        self.version = 0

    def run(self):
        self.outbox.put(self.snapshot())
        while True:
            message = self.inbox.get()
            if message is None:
                return
            rate = self.lr * min(1.0, 1.2 - self.version / STEPS)
            with torch.no_grad():
                for name, grad in message.items():
                    self.velocity[name].mul_(self.momentum).add_(grad.float())
                    self.weights[name].add_(self.velocity[name], alpha=-rate * (1 - self.momentum))
            self.version += 1
            self.outbox.put(self.snapshot())

    def snapshot(self):
        return self.version, {name: weight.clone() for name, weight in self.weights.items()}


def pull(model, server):
    version, weights = server.outbox.get()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return version


model = build()
server = ParameterServer(model)
server.start()
for step in range(STEPS):
    pull(model, server)
    x, y = hours(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x).float(), y) * DOCKS
    grads = torch.autograd.grad(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    server.inbox.put({name: grad.to(torch.bfloat16) for name, grad in zip(names, grads)})
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")
pull(model, server)
server.inbox.put(None)
server.join()

with torch.no_grad():
    x, y = hours(4000)
    print(f"metric {F.mse_loss(model(x), y).item():.5f}")
