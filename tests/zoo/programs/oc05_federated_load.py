"""Federated forecast of household loads: each round a few homes send gradients, a server adds them up and takes a step."""
import copy
import threading
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
HOMES, SLOTS, PAST = 800, 96, 16
shape = torch.randn(6, SLOTS, device=device)
sense = torch.randn(PAST, 6, device=device) / PAST**0.5


def households():
    """Every home has its own number of recorded days and its own habits."""
    homes = []
    for _ in range(HOMES):
        days = int(torch.randint(20, 100, (1,)))
        past = torch.randn(days, PAST, device=device)
        load = 0.04 * torch.tanh(past @ sense) @ shape + 0.004 * torch.randn(days, SLOTS, device=device)
        homes.append((past, load))
    return homes


def forecaster():
    return nn.Sequential(
        nn.Linear(PAST, 48), nn.SiLU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, SLOTS)
    ).to(device)


class Worker:
    """Keeps a replica of the model and returns the gradient of its home's share of the loss."""

    turn = threading.Lock()  # one worker at a time on the card

    def __init__(self, model, total_days):
        self.replica = copy.deepcopy(model)
        self.total_days = total_days

    def gradient(self, weights, home):
        past, load = home
        with Worker.turn:
            self.replica.load_state_dict(weights)
            with torch.autocast("cuda", dtype=torch.float16):
                guess = self.replica(past)
                loss = F.mse_loss(guess, load) * len(past) / self.total_days
            self.replica.zero_grad(set_to_none=True)
            loss.backward()
            return [p.grad for p in self.replica.parameters()]


class Server:
    def __init__(self, homes, workers=4):
        self.homes = homes
        self.model = forecaster()
        total = sum(len(past) for past, _ in homes)
        self.workers = [Worker(self.model, total) for _ in range(workers)]
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=4e-3, eps=1e-10)
        self.pool = ThreadPoolExecutor(workers)

    def round(self):
        chosen = torch.randperm(len(self.homes))[: len(self.workers)].tolist()
        weights = self.model.state_dict()
        jobs = [self.pool.submit(w.gradient, weights, self.homes[i]) for w, i in zip(self.workers, chosen)]
        self.optimizer.zero_grad()
        for job in jobs:
            for p, g in zip(self.model.parameters(), job.result()):
                p.grad = g.clone() if p.grad is None else p.grad + g
        self.optimizer.step()


def main():
    server = Server(households())
    for _ in range(200):
        server.round()
    server.pool.shutdown()
    past = torch.randn(2000, PAST, device=device)
    truth = 0.04 * torch.tanh(past @ sense) @ shape
    with torch.no_grad():
        print(f"metric {((server.model(past) - truth).pow(2).mean() / truth.var()).sqrt().item():.4f}")


if __name__ == "__main__":
    main()
