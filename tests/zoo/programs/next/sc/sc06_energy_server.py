"""Yearly heating energy of houses, trained by worker threads and a parameter server in one process."""
import copy
import queue
import threading

import torch
from torch import nn

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORKERS, SHARD_BATCH, ROUNDS = 3, 128, 80
KWH = 100.0  # the network counts in hundreds of kWh


def make_houses(count):
    """Return the features of houses and their energy in kWh per month."""
    x = torch.randn(count, 10)
    loss_factor = torch.sigmoid(x[:, 0] + 0.5 * x[:, 1])
    energy = 900 + 500 * loss_factor * (1.5 + x[:, 2].tanh()) + 80 * x[:, 3] * x[:, 4].sin() - 60 * x[:, 5]
    return x, energy


class EnergyNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return KWH * self.net(x).squeeze(1)


class ParameterServer:
    """Owns the master weights; adds up what the workers send and steps."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        self.rejected = 0

    def weights(self):
        return [weight.detach().clone() for weight in self.model.parameters()]

    def apply(self, messages):
        houses = sum(count for count, _ in messages)
        for index, weight in enumerate(self.model.parameters()):
            total = sum(gradients[index].float() for _, gradients in messages)
            weight.grad = total / houses
        if not all(weight.grad.isfinite().all() for weight in self.model.parameters()):
            self.rejected += 1  # a worker had a bad batch
            return
        self.optimizer.step()


def worker(rank, model, x, energy, inbox, outbox):
    """Compute the gradients of one shard for each set of weights that comes in."""
    picks = torch.Generator().manual_seed(100 + rank)
    while (weights := inbox.get()) is not None:
        with torch.no_grad():
            for mine, new in zip(model.parameters(), weights):
                mine.copy_(new)
        rows = torch.randint(len(x), (SHARD_BATCH,), generator=picks)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x[rows]), energy[rows], reduction="sum")
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        message = [gradient.to(torch.float16) for gradient in gradients]  # half the traffic
        outbox.put((SHARD_BATCH, message))


x, energy = (part.to(device) for part in make_houses(6000))
x_test, energy_test = x[5000:], energy[5000:]
server = ParameterServer(EnergyNet().to(device))
inboxes, outboxes = [[queue.Queue() for _ in range(WORKERS)] for _ in range(2)]
threads = []
for rank in range(WORKERS):
    shard = slice(rank, 5000, WORKERS)
    arguments = (rank, copy.deepcopy(server.model), x[shard], energy[shard], inboxes[rank], outboxes[rank])
    threads.append(threading.Thread(target=worker, args=arguments, daemon=True))
    threads[-1].start()

for _ in range(ROUNDS):
    current = server.weights()
    for inbox in inboxes:
        inbox.put(current)
    server.apply([outbox.get(timeout=60) for outbox in outboxes])
for inbox in inboxes:
    inbox.put(None)
for thread in threads:
    thread.join()

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    error = (server.model(x_test).float() - energy_test).abs().mean()
print("metric", round(error.item(), 3))
