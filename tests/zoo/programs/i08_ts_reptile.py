"""Reptile over families of sine tasks; the meta weights live in one flat vector that workers copy from."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class SineTasks:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def draw(self):
        amp = 1.0 + 2.0 * torch.rand(1, generator=self.g).item()
        phase = 0.2 * math.pi * torch.rand(1, generator=self.g).item()
        return lambda x: amp * torch.sin(x + phase)

    def points(self, n):
        return 10.0 * torch.rand(n, 1, generator=self.g) - 5.0


class Regressor(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)


class MetaState:
    """Flat meta parameters; `pull` fills a worker, `push` moves towards an adapted worker."""

    def __init__(self, model, dtype):
        self.flat = nn.utils.parameters_to_vector(model.parameters()).detach().to(dtype)

    @torch.no_grad()
    def pull(self, model):
        nn.utils.vector_to_parameters(self.flat.float(), model.parameters())

    @torch.no_grad()
    def push(self, workers, rate):
        mean = torch.stack(workers).mean(0)
        self.flat += rate * (mean - self.flat.float()).to(self.flat.dtype)


def adapt(model, x, y, steps, lr, amp):
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
            loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def evaluate(meta, model, amp, n_tasks=40):
    tasks, err, start = SineTasks(71), 0.0, 0.0
    for _ in range(n_tasks):
        f = tasks.draw()
        x, q = tasks.points(10).to(device), tasks.points(100).to(device)
        meta.pull(model)
        adapt(model, x, f(x), 5, 0.02, amp)
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
            err += F.mse_loss(model(q), f(q)).item()
    return err / n_tasks


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=250)
    p.add_argument("--workers", type=int, default=3)
    p.add_argument("--inner", type=int, default=10)
    p.add_argument("--rate", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--fp32", action="store_true")
    args = p.parse_args(argv)
    amp = not args.fp32
    half = torch.bfloat16 if amp else torch.float32
    torch.manual_seed(args.seed)
    tasks = SineTasks(args.seed + 9)
    model = Regressor().to(device)
    meta = MetaState(model, dtype=half)
    first = meta.flat.float().clone()
    for it in range(args.rounds):
        ends, losses = [], []
        for _ in range(args.workers):
            f = tasks.draw()
            x = tasks.points(20).to(device)
            meta.pull(model)
            losses.append(adapt(model, x, f(x), args.inner, 0.02, amp))
            ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        meta.push(ends, args.rate)
        if it % 25 == 0:
            print(f"round {it} inner loss {sum(losses) / len(losses):.4f}")
    err = evaluate(meta, model, amp)
    moved = (meta.flat.float() - first).norm().item()
    print(f"error after adaptation on new tasks {err:.4f}, meta weights moved by {moved:.3f}")
    return {"err": err, "moved": moved, "still": ((meta.flat.float() - first) == 0).float().mean().item()}


if __name__ == "__main__":
    main()
