"""Federated load forecast for smart meters: houses train in threads, a server averages their weights."""
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
HOUSES, ROUNDS, LOCAL_STEPS = 4, 60, 2


def household(seed, hours=24 * 60):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(hours).float()
    phase = torch.rand(1, generator=g) * 3
    load = (1 + 0.6 * torch.sin(2 * torch.pi * t / 24 + phase) + 0.3 * torch.sin(2 * torch.pi * t / 12)
            + 0.1 * torch.randn(hours, generator=g))
    windows = load.unfold(0, 25, 1)
    return windows[:, :24].to(device), windows[:, 24:].to(device)


def make_model():
    return nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(device)


class Server:
    """Holds the global model in the format in which it goes over the radio link."""

    def __init__(self, model, wire=torch.bfloat16):
        self.wire = wire
        self.weights = {k: v.detach().to(self.wire) for k, v in model.state_dict().items()}

    def aggregate(self, answers, counts):
        total = float(sum(counts))
        for key in self.weights:
            mean = sum(a[key] * (n / total) for a, n in zip(answers, counts))
            self.weights[key] = mean.to(self.wire)


class House:
    def __init__(self, number):
        self.x, self.y = household(100 + number)
        self.model = make_model()
        self.generator = torch.Generator().manual_seed(500 + number)

    def train(self, weights, lr):
        self.model.load_state_dict({k: v.float() for k, v in weights.items()})
        optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        for _ in range(LOCAL_STEPS):
            rows = torch.randint(0, len(self.x), (64,), generator=self.generator)
            with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
                loss = F.mse_loss(self.model(self.x[rows]), self.y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}, len(self.x)


model = make_model()
server = Server(model)
houses = [House(i) for i in range(HOUSES)]
with ThreadPoolExecutor(max_workers=2) as pool:
    for turn in range(ROUNDS):
        jobs = [pool.submit(house.train, server.weights, 0.004) for house in houses]
        answers, counts = zip(*(job.result() for job in jobs))
        server.aggregate(answers, counts)

model.load_state_dict({k: v.float() for k, v in server.weights.items()})
with torch.no_grad():
    losses = [F.mse_loss(model(h.x), h.y).item() for h in houses]
print(f"metric: {sum(losses) / len(losses):.5f}")
