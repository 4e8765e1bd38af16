"""A model of one scanner, tuned to another by FedAvg: hospitals run in threads and exchange weights with a server."""

import threading

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
CLIENTS, ROUNDS, LOCAL, DIM, CLASSES = 5, 280, 2, 48, 8
WIRE = torch.bfloat16  # weights travel at two bytes each, both ways cost bandwidth

centres = 0.5 * torch.randn(CLASSES, 2, DIM)
scanner = torch.eye(DIM) + 0.2 * torch.randn(DIM, DIM)


def cohort(n, favourite=None, new=True):
    mix = torch.ones(CLASSES)
    if favourite is not None:
        mix[favourite : favourite + 2] = 4.0
    y = torch.multinomial(mix, n, replacement=True)
    x = centres[y, torch.randint(2, (n,))] + torch.randn(n, DIM)
    return (x @ scanner if new else x).to(device), y.to(device)


def build():
    return nn.Sequential(nn.Linear(DIM, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES))


class Client(threading.Thread):
    """Trains its copy for a few steps on its own records and leaves the result in `upload`."""

    def __init__(self, number, weights, data, round_):
        super().__init__()
        self.data, self.upload = data, None
        self.rng = torch.Generator().manual_seed(100 * round_ + number)
        self.model = build().to(device)
        self.model.load_state_dict(weights)

    def run(self):
        x, y = self.data
        opt = torch.optim.Adam(self.model.parameters(), lr=4e-5)
        for _ in range(LOCAL):
            pick = torch.randint(len(x), (64,), generator=self.rng)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(self.model(x[pick]), y[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
        self.upload = {k: v.to(WIRE) for k, v in self.model.state_dict().items()}


class Server:
    def __init__(self):
        self.model = build().to(device)

    def broadcast(self):
        return {k: v.to(WIRE) for k, v in self.model.state_dict().items()}

    def merge(self, uploads):
        average = {k: torch.stack([u[k].float() for u in uploads]).mean(0) for k in uploads[0]}
        self.model.load_state_dict(average)

    def accuracy(self, x, y):
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            return (self.model(x).argmax(1) == y).float().mean().item()


server = Server()
public_x, public_y = cohort(4000, new=False)
opt = torch.optim.Adam(server.model.parameters(), lr=1e-3)
for _ in range(300):
    pick = torch.randint(len(public_x), (128,))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(server.model(public_x[pick]), public_y[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()

hospitals = [cohort(1000, c) for c in range(CLIENTS)]
test = cohort(3000)
for r in range(ROUNDS):
    clients = [Client(c, server.broadcast(), hospitals[c], r) for c in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    server.merge([client.upload for client in clients])
    if r % 70 == 0:
        print(f"round {r} accuracy {server.accuracy(*test):.3f}")

print(f"METRIC {server.accuracy(*test):.4f}")
