"""Press line quality: replicas run in threads over shards of a batch, gradients are averaged into the main copy."""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(37)
WORKERS, SHARD, STEPS, SIGNALS = 3, 32, 200, 18


def make():
    return nn.Sequential(nn.Linear(SIGNALS, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))


def strokes(n):
    g = torch.Generator().manual_seed(51)
    w = torch.randn(SIGNALS, 2, generator=g) / SIGNALS**0.5
    signal = torch.randn(n, SIGNALS)
    thickness = 700.0 + 250.0 * torch.sin(1.5 * signal @ w) + 10.0 * torch.randn(n, 2)  # micrometre
    return signal.half().to(device), thickness.half().to(device)  # as the recorder stores them


class Worker:
    def __init__(self, model):
        self.replica = copy.deepcopy(model)

    def __call__(self, job):
        signal, thickness, factor = job
        self.replica.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            out = 700.0 + 250.0 * self.replica(signal.float())
            loss = ((out - thickness) ** 2).mean() / 250.0**2
        (loss * factor).backward()
        return [p.grad for p in self.replica.parameters()]


def main():
    data, test = strokes(4096), strokes(1024)
    model = make().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**18, growth_interval=100)
    workers = [Worker(model) for _ in range(WORKERS)]
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        for _ in range(STEPS):
            factor = scaler.scale(torch.ones((), device=device))
            jobs = []
            for worker in workers:
                worker.replica.load_state_dict(model.state_dict())
                pick = torch.randint(len(data[0]), (SHARD,), device=device)
                jobs.append((data[0][pick], data[1][pick], factor))
            futures = [pool.submit(worker, job) for worker, job in zip(workers, jobs, strict=True)]
            gradients = [future.result() for future in futures]
            for p, *shards in zip(model.parameters(), *gradients, strict=True):
                p.grad = torch.stack(shards).mean(0)
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
    with torch.no_grad():
        out = model(test[0].float())
        error = ((out - (test[1].float() - 700.0) / 250.0) ** 2).mean().item()
    print(f"final metric: {error:.4f}")


if __name__ == "__main__":
    main()
