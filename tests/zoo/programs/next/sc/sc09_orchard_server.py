"""Sugar content of fruit from near-infrared spectra, trained by worker threads and a parameter server."""
import copy
import queue
import threading

import torch
from torch import nn

torch.manual_seed(19)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORKERS, SHARD_BATCH, ROUNDS, WAVES = 3, 128, 80, 24


def make_fruit(count):
    """Return standardised spectra and the sugar content, standardised as well."""
    hidden = torch.randn(count, 3)
    bands = torch.sin(torch.linspace(0, 6, WAVES) * torch.tensor([[1.0], [1.7], [2.3]]))
    spectra = hidden @ bands + 0.1 * torch.randn(count, WAVES)
    sugar = hidden[:, 0] + 0.5 * hidden[:, 1] * hidden[:, 2].tanh()
    return spectra, (sugar - sugar.mean()) / sugar.std()


class SugarNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WAVES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, spectra):
        return self.net(spectra).squeeze(1)


class ParameterServer:
    """Owns the master weights; averages what the workers send and steps."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def weights(self):
        return [weight.detach().clone() for weight in self.model.parameters()]

    def apply(self, messages):
        for index, weight in enumerate(self.model.parameters()):
            total = sum(gradients[index].float() for gradients in messages)
            weight.grad = total / len(messages)
        self.optimizer.step()


def worker(rank, model, spectra, sugar, inbox, outbox):
    """Compute the gradients of one shard for each set of weights that comes in."""
    picks = torch.Generator().manual_seed(100 + rank)
    while (weights := inbox.get()) is not None:
        with torch.no_grad():
            for mine, new in zip(model.parameters(), weights):
                mine.copy_(new)
        rows = torch.randint(len(spectra), (SHARD_BATCH,), generator=picks)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(spectra[rows]), sugar[rows])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        outbox.put([gradient.to(torch.float16) for gradient in gradients])


spectra, sugar = (part.to(device) for part in make_fruit(6000))
server = ParameterServer(SugarNet().to(device))
inboxes, outboxes = [[queue.Queue() for _ in range(WORKERS)] for _ in range(2)]
threads = []
for rank in range(WORKERS):
    shard = slice(rank, 5000, WORKERS)
    arguments = (rank, copy.deepcopy(server.model), spectra[shard], sugar[shard], inboxes[rank], outboxes[rank])
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
    error = (server.model(spectra[5000:]).float() - sugar[5000:]).abs().mean()
print("metric", round(error.item(), 5))
