"""Load forecast: a replay buffer kept in half, running input statistics and a teacher refreshed now and then."""
import argparse
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Grid:
    """Hourly load: daily and weekly cycles, temperature effect, drifting level."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def draw(self, n, window=24):
        t0 = torch.rand(n, 1, generator=self.g) * 168
        t = t0 + torch.arange(window + 1)
        day, week = 2 * math.pi * t / 24, 2 * math.pi * t / 168
        temp = torch.randn(n, 1, generator=self.g) + 0.3 * torch.sin(day)
        phase = 0.6 * torch.randn(n, 1, generator=self.g)
        load = 3 + torch.sin(day + phase) + 0.5 * torch.cos(week) + 0.4 * temp.abs()
        load = load + 0.5 * torch.randn(n, 1, generator=self.g) + 0.05 * torch.randn(n, window + 1, generator=self.g)
        x = torch.cat([load[:, :-1], temp[:, -4:], torch.sin(week[:, -1:]), torch.cos(week[:, -1:])], 1)
        return x, load[:, -1:]


class Replay:
    def __init__(self, size, dim, dtype):
        self.x, self.y = torch.zeros(size, dim, dtype=dtype), torch.zeros(size, 1, dtype=dtype)
        self.size, self.at, self.full = size, 0, 0

    def put(self, x, y):
        i = (self.at + torch.arange(len(x))) % self.size
        self.x[i], self.y[i] = x.to(self.x.dtype), y.to(self.y.dtype)
        self.at, self.full = int(i[-1]) + 1, min(self.full + len(x), self.size)

    def take(self, n, g):
        i = torch.randint(0, self.full, (n,), generator=g)
        return self.x[i], self.y[i]


class RunningStats(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("m2", torch.ones(dim))

    @torch.no_grad()
    def update(self, x):
        n = len(x)
        m = x.float().mean(0)
        d = m - self.mean
        self.m2 += (x.float() - m).pow(2).sum(0) + d * d * self.count * n / (self.count + n)
        self.mean += d * n / (self.count + n)
        self.count += n

    def forward(self, x):
        std = (self.m2 / self.count.clamp(min=1)).sqrt()
        return ((x.float() - self.mean) / (std + 1e-3)).clamp(-6, 6)


class Forecaster(nn.Module):
    def __init__(self, dim, width=160):
        super().__init__()
        self.stats = RunningStats(dim)
        self.net = nn.Sequential(nn.Linear(dim, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(self.stats(x))


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="bf16", choices=DTYPES)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=300)
    a = ap.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = DTYPES[a.precision]
    amp = dtype != torch.float32
    torch.manual_seed(a.seed)
    stream, memory = Grid(a.seed + 60), Replay(20000, 30, dtype)
    model = Forecaster(30).to(device)
    teacher = copy.deepcopy(model).to(dtype).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    g = torch.Generator().manual_seed(a.seed + 8)
    for step in range(a.steps):
        x, y = stream.draw(128)
        memory.put(x, y)
        model.stats.update(x.to(device))
        if step % 25 == 0:
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), model.parameters()):
                    old.copy_(new)
                teacher.stats = model.stats
        x, y = (t.to(device) for t in memory.take(2048, g))
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
            out = model(x)
            with torch.no_grad():
                guide = teacher(x)
            loss = F.smooth_l1_loss(out.float(), y.float()) + 0.05 * F.mse_loss(out, guide)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    x, y = (t.to(device) for t in Grid(5050).draw(4000))
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
        rmse = F.mse_loss(model(x).float(), y).sqrt().item()
    print(f"test rmse {rmse:.4f}")
    return {"rmse": rmse, "loss": loss.item()}


if __name__ == "__main__":
    main()
