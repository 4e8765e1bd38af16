"""Federated anomaly scores for wind turbines; each site trains in a thread and uploads its change in few bits."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

SITES = 3
ROUNDS = 40
LOCAL_STEPS = 3
BATCH = 128
SENSORS = 14


class Site:
    """Sensor rows of one wind park. The target is the log of the excess bearing temperature."""

    def __init__(self, number, device, card):
        g = torch.Generator().manual_seed(300 + number)
        self.number, self.device, self.card, self.generator = number, device, card, g
        self.rows, self.excess = self.record(4000 + 1500 * number, g)
        self.residual = {}

    @staticmethod
    def record(n, g):
        rows = torch.randn(n, SENSORS, generator=g)
        wear = torch.sin(1.5 * rows[:, 0]) + 0.7 * rows[:, 1] * rows[:, 2] + 0.4 * rows[:, 3:6].sum(1)
        return rows, wear + 0.2 * torch.randn(n, generator=g)

    def train(self, weights, round_):
        model = build().to(self.device)
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.08 / (1 + 0.02 * round_), momentum=0.8)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
        for _ in range(LOCAL_STEPS):
            pick = torch.randint(0, len(self.rows), (BATCH,), generator=self.generator)
            with self.card:
                with torch.autocast("cuda", dtype=torch.float16):
                    score = model(self.rows[pick].to(self.device)).squeeze(1)
                    loss = nn.functional.mse_loss(score, self.excess[pick].to(self.device))
                optimizer.zero_grad()
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return self.number, loss.item(), len(self.rows), self.upload(model.state_dict(), weights)

    @torch.no_grad()
    def upload(self, local, weights):
        """A tensor and its largest entry; what the 16 bits leave out is carried to the next round."""
        parcels = {}
        for name, new in local.items():
            change = new - weights[name] + self.residual.get(name, 0.0)
            top = change.abs().max().clamp_min(1e-12)
            short = (change / top).to(torch.float16)
            self.residual[name] = change - short.float() * top
            parcels[name] = (short, top)
        return parcels


def build(hidden=64):
    return nn.Sequential(
        nn.Linear(SENSORS, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
    )


class Aggregator:
    """FedAvg with server momentum; the momentum lives in half to keep the aggregator slim."""

    def __init__(self, model, server_lr=1.0, momentum=0.3):
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.velocity = {name: torch.zeros_like(value).to(torch.float16) for name, value in self.weights.items()}
        self.server_lr, self.momentum = server_lr, momentum

    @torch.no_grad()
    def merge(self, answers):
        total = sum(count for _, _, count, _ in answers)
        for name, value in self.weights.items():
            mean = torch.zeros_like(value)
            for _, _, count, parcels in sorted(answers, key=lambda answer: answer[0]):
                short, top = parcels[name]
                mean += short.float() * top * (count / total)
            velocity = self.momentum * self.velocity[name].float() + mean
            self.velocity[name] = velocity.to(torch.float16)
            value += self.server_lr * velocity


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(12)
    aggregator = Aggregator(build().to(device))
    card = threading.Lock()
    sites = [Site(number, device, card) for number in range(SITES)]
    with ThreadPoolExecutor(SITES) as pool:
        for round_ in range(ROUNDS):
            frozen = {name: value.clone() for name, value in aggregator.weights.items()}
            answers = list(pool.map(lambda site: site.train(frozen, round_), sites))
            aggregator.merge(answers)
            if round_ % 10 == 0:
                print(f"round {round_:3d}  loss " + " ".join(f"{answer[1]:.3f}" for answer in answers))

    model = build().to(device)
    model.load_state_dict(aggregator.weights)
    rows, excess = Site.record(4000, torch.Generator().manual_seed(999))
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        score = model(rows.to(device)).squeeze(1).float().cpu()
    print(f"final metric: {nn.functional.mse_loss(score, excess).item():.4f}")


if __name__ == "__main__":
    main()
