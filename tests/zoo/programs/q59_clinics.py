"""Federated training over clinics: each client thread trains its own copy and sends it to the server (FedAvg)."""
import copy
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
CLINICS, ROUNDS, LOCAL, BATCH, DIM = 3, 200, 2, 128, 32
shift = torch.randn(CLINICS, DIM) * 0.15
readout = torch.randn(DIM, 4)


def patients(clinic, n, generator):
    """Lab values of a clinic and the outcome; the outcome depends on several markers of theirs."""
    x = torch.randn(n, DIM, generator=generator) + shift[clinic]
    markers = x @ readout / DIM**0.5
    score = markers[:, :2].sum(1) + torch.tanh(markers[:, 2:]).sum(1)
    return x.to(device), (score + 0.1 * torch.randn(n, generator=generator) > 0).long().to(device)


def network():
    return nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 2)).to(device)


class Clinic(threading.Thread):
    def __init__(self, number, card):
        super().__init__(daemon=True)
        generator = torch.Generator().manual_seed(100 + number)
        self.data = patients(number, 800, generator)
        self.generator, self.card = generator, card
        self.inbox, self.outbox = queue.Queue(), queue.Queue()

    def run(self):
        while (weights := self.inbox.get()) is not None:
            with self.card:
                self.outbox.put(self.round(weights))

    def round(self, weights):
        model = network()
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(LOCAL):
            index = torch.randint(len(self.data[0]), (BATCH,), generator=self.generator).to(device)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(self.data[0][index]), self.data[1][index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {n: v.to(torch.bfloat16) for n, v in model.state_dict().items()}, loss.item()


card = threading.Lock()
clinics = [Clinic(k, card) for k in range(CLINICS)]
for clinic in clinics:
    clinic.start()
server = network()
held = [patients(k, 500, torch.Generator().manual_seed(900 + k)) for k in range(CLINICS)]


@torch.no_grad()
def error():
    return sum((server(x).argmax(1) != y).float().mean().item() for x, y in held) / CLINICS


for turn in range(ROUNDS):
    losses, received = [], []
    for clinic in clinics:
        clinic.inbox.put(copy.deepcopy(server.state_dict()))
        weights, loss = clinic.outbox.get()
        received.append(weights)
        losses.append(loss)
    server.load_state_dict({n: torch.stack([w[n].float() for w in received]).mean(0) for n in received[0]})
    if turn % 40 == 39:
        print(f"round {turn + 1}: local loss {sum(losses) / CLINICS:.3f} held-out error {error():.3f}")
for clinic in clinics:
    clinic.inbox.put(None)
print(f"METRIC {error():.4f}")
