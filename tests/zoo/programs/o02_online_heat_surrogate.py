"""Online training of a heat-equation surrogate: solver threads stream samples, a learner thread trains on them.

No data set is written to disk; every simulated trajectory goes through a small reservoir and is dropped.
"""
import queue
import threading
import numpy as np
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(4)
N_X, N_ITER, BATCH, T_FINAL = 48, 150, 64, 0.005


def simulate(params, t):
    """u_t = kappa(x) u_xx, Dirichlet walls at the two given temperatures; explicit finite differences, batched over params"""
    left, right, amp, kap = params.T
    x = np.linspace(0, 1, N_X)
    u = left[:, None] * (1 - x) + right[:, None] * x + amp[:, None] * np.sin(3 * np.pi * x)
    kappa = kap[:, None] * (1 + 0.8 * np.sin(2 * np.pi * x))
    n = 80
    dt = t / n
    for _ in range(n):
        lap = np.zeros_like(u)
        lap[:, 1:-1] = (u[:, 2:] - 2 * u[:, 1:-1] + u[:, :-2]) * (N_X - 1) ** 2
        u = u + dt * kappa * lap
    return u


def draw(rng, n):
    return np.stack([rng.uniform(-1, 1, n), rng.uniform(-1, 1, n), rng.uniform(-1, 1, n), rng.uniform(0.2, 1.5, n)], 1)


class Surrogate(nn.Module):
    def __init__(self, h=96):
        super().__init__()
        self.lift = nn.Linear(4, h)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(h), nn.Linear(h, h), nn.GELU(), nn.Linear(h, h)) for _ in range(3))
        self.out_norm = nn.LayerNorm(h)
        self.out = nn.Linear(h, N_X)

    def forward(self, p):
        h = self.lift(p)
        for b in self.blocks:
            h = h + b(h)
        return self.out(self.out_norm(h))


class SolverThread(threading.Thread):
    """client: simulates and sends its samples; each client owns its own queue so that runs can be repeated"""

    def __init__(self, rank, n_batches, per_batch):
        super().__init__(daemon=True)
        self.rng = np.random.default_rng(100 + rank)
        self.n_batches, self.per_batch = n_batches, per_batch
        self.outbox = queue.Queue(maxsize=4)

    def run(self):
        for _ in range(self.n_batches):
            p = draw(self.rng, self.per_batch)
            self.outbox.put((torch.tensor(p, dtype=torch.float32), torch.tensor(simulate(p, T_FINAL), dtype=torch.float32)))


class Learner(threading.Thread):
    def __init__(self, model, clients, n_iter):
        super().__init__()
        self.model, self.clients, self.n_iter = model, clients, n_iter
        self.opt = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, n_iter)
        self.scaler = torch.amp.GradScaler(device)
        self.history = []

    def run(self):
        # autocast is per thread, so it has to be entered here and not in main()
        with torch.autocast(device, dtype=torch.float16):
            for it in range(self.n_iter):
                parts = [c.outbox.get() for c in self.clients]
                p = torch.cat([a for a, _ in parts]).to(device)
                u = torch.cat([b for _, b in parts]).to(device)
                self.opt.zero_grad(set_to_none=True)
                loss = nn.functional.mse_loss(self.model(p).float(), u)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.opt)
                self.scaler.update()
                self.sched.step()
                self.history.append(loss.item())


def main():
    model = Surrogate().to(device)
    clients = [SolverThread(r, N_ITER, BATCH // 4) for r in range(4)]
    learner = Learner(model, clients, N_ITER)
    for c in clients:
        c.start()
    learner.start()
    learner.join()
    for i in range(0, N_ITER, 25):
        print(f"iter {i:4d}  loss {learner.history[i]:.5f}")
    print(f"iter {N_ITER - 1:4d}  loss {learner.history[-1]:.5f}")
    p = draw(np.random.default_rng(9), 256)
    u = torch.tensor(simulate(p, T_FINAL), dtype=torch.float32, device=device)
    with torch.no_grad():
        pred = model(torch.tensor(p, dtype=torch.float32, device=device))
    print(f"validation: relative error {((pred - u).norm() / u.norm()).item():.4f}")


main()
