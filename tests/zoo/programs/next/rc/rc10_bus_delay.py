"""Delay of buses at the stops of a line, trained against a parameter server in a thread of its own.

The trainer pulls the weights, works out the gradients of a batch and pushes them; the server applies them.
"""

import queue
import threading

import torch
import torch.nn.functional as F
from torch import nn

STOPS, FEATURES, STEPS, BATCH = 10, 18, 240, 128

torch.manual_seed(6)
device = "cuda" if torch.cuda.is_available() else "cpu"

mix = torch.randn(FEATURES, 24) / FEATURES**0.5
out = torch.randn(24, STOPS) / 24**0.5


def trips(n):
    """Traffic, weather and headway of n trips, and the delay at each stop (minutes)."""
    x = torch.randn(n, FEATURES)
    y = torch.relu(x @ mix * 1.5) @ out + 0.3 * torch.cos(x[:, :STOPS])
    return x.to(device), (y + 0.05 * torch.randn(n, STOPS)).to(device)


def build():
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, STOPS)
    ).to(device)


class ParameterServer(threading.Thread):
    """Holds the weights and the momentum; one message in is a set of gradients, one out a set of weights."""

    def __init__(self, model, lr=0.03, momentum=0.9):
        super().__init__(daemon=True)
        self.lr, self.momentum = lr, momentum
        self.inbox, self.outbox = queue.Queue(), queue.Queue()
        # master copy; what goes over the wire is cast in snapshot()
        self.weights = {k: p.detach().float().clone() for k, p in model.named_parameters()}
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
        return self.version, {name: weight.to(torch.bfloat16) for name, weight in self.weights.items()}


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
    x, y = trips(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x).float(), y) * STOPS
    grads = torch.autograd.grad(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    server.inbox.put({name: grad.to(torch.bfloat16) for name, grad in zip(names, grads)})
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")
pull(model, server)
server.inbox.put(None)
server.join()

with torch.no_grad():
    x, y = trips(4000)
    print(f"metric {F.mse_loss(model(x), y).item():.5f}")
