"""Identify the drag field along a pipeline from a pressure profile; residuals are computed by a pool of threads."""
import queue
import threading

import torch
import torch.nn as nn

SEED = 5
STEPS = 150
SHARDS = 4
CELLS = 48
AMP_DTYPE = torch.float16
device = "cuda" if torch.cuda.is_available() else "cpu"


class Worker(threading.Thread):
    """Runs jobs in the mixed-precision mode of the code that made it."""

    def __init__(self, jobs):
        super().__init__(daemon=True)
        self.jobs = jobs
        self.enabled = torch.is_autocast_enabled("cuda")
        self.dtype = torch.get_autocast_dtype("cuda")

    def run(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            function, args, box, done = job
            try:
                with torch.autocast("cuda", dtype=self.dtype, enabled=self.enabled):
                    box.append(function(*args))
            finally:
                done.set()


class Pool:
    def __init__(self, size):
        self.jobs = queue.Queue()
        self.workers = [Worker(self.jobs) for _ in range(size)]
        for worker in self.workers:
            worker.start()

    def map(self, function, *columns):
        tickets = []
        for args in zip(*columns):
            box, done = [], threading.Event()
            self.jobs.put((function, args, box, done))
            tickets.append((box, done))
        for _, done in tickets:
            done.wait()
        return [box[0] for box, _ in tickets]

    def close(self):
        for _ in self.workers:
            self.jobs.put(None)


class DragNet(nn.Module):
    """Predicts the pressure drop of each cell (in hPa) from what is known of the ground."""

    def __init__(self, features=6, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, 1)

    def forward(self, ground):
        return 400.0 + self.head(self.net(ground)).squeeze(-1).float()


march = torch.tril(torch.ones(CELLS, CELLS)).to(device)


def balance(drops, profile):
    """Residual of the momentum balance: what the drops add up to along the pipe, against the gauges."""
    return (drops @ march.T - profile).float().diff(dim=1, prepend=torch.zeros(len(drops), 1, device=device))


def survey(n, law):
    ground = torch.randn(n, CELLS, 6)
    drops = 400.0 + torch.sin(ground @ law[0]) + 0.5 * ground @ law[1]
    return ground.to(device), drops.to(device)


torch.manual_seed(SEED)
law = (torch.randn(6), torch.randn(6) / 6**0.5)
ground, drops = survey(64, law)
profile = drops @ march.T
model = DragNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
scaler = torch.amp.GradScaler("cuda", enabled=AMP_DTYPE is not torch.float32)

with torch.autocast("cuda", dtype=AMP_DTYPE):
    pool = Pool(SHARDS)
    for step in range(1, STEPS + 1):
        pick = torch.randint(0, len(ground), (16,), device=device)
        predicted = model(ground[pick])
        with torch.autocast("cuda", enabled=False):
            residuals = pool.map(balance, predicted.chunk(SHARDS), profile[pick].chunk(SHARDS))
            loss = torch.cat(residuals).pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
pool.close()

with torch.no_grad():
    new_ground, new_drops = survey(64, law)
    print("metric", round((model(new_ground) - new_drops).pow(2).mean().sqrt().item(), 4))
