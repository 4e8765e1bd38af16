"""Energies of small molecules from pair distances; a thread evaluates snapshots and steers the learning rate."""
import argparse
import copy
import queue
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_molecules(n, gen, atoms=6):
    pos = torch.randn(n, atoms, 3, generator=gen) * 1.4
    i, j = torch.triu_indices(atoms, atoms, 1)
    d = (pos[:, i] - pos[:, j]).norm(dim=2).clamp(min=0.8)
    strength = torch.linspace(0.5, 1.5, len(i))
    energy = (strength * ((1 - torch.exp(-1.2 * (d - 1.3))) ** 2 - 1)).sum(1)
    return d.to(device), (60.0 * energy).to(device)


class PairNet(nn.Module):
    def __init__(self, pairs=15, basis=12, width=128, mean=0.0, std=1.0):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.8, 5.0, basis))
        self.pair = nn.Sequential(nn.Linear(basis, 32), nn.SiLU())
        self.body = nn.Sequential(nn.Linear(pairs * 32, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.mean, self.std = mean, std

    def forward(self, d):
        rbf = torch.exp(-3.0 * (d[..., None] - self.centres) ** 2)
        h = self.pair(rbf).flatten(1)
        return self.body(h).squeeze(1)

    def energy(self, d):
        return self.forward(d) * self.std + self.mean


class Evaluator(threading.Thread):
    """Takes snapshots from a queue and answers with the squared error on the validation set."""

    def __init__(self, d, energy, dtype, batch=1000):
        super().__init__(daemon=True)
        self.d, self.energy, self.dtype, self.batch = d, energy, dtype, batch
        self.jobs, self.answers = queue.Queue(), queue.Queue()

    def score(self, model):
        total = 0.0
        with torch.no_grad():
            for d, e in zip(self.d.split(self.batch), self.energy.split(self.batch)):
                with torch.autocast(device, dtype=self.dtype):
                    out = model.energy(d)
                error = out - e.to(out.dtype)
                total += torch.dot(error, error).item()
        return total / len(self.d)

    def run(self):
        while True:
            model = self.jobs.get()
            if model is None:
                return
            self.answers.put(self.score(model))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--every", type=int, default=10)
    args = parser.parse_args()
    dtype = torch.float16
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(8)
    (d, e), (vd, ve), (td, te) = make_molecules(20000, gen), make_molecules(4000, gen), make_molecules(4000, gen)

    model = PairNet(mean=e.mean().item(), std=e.std().item()).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.3, patience=3)
    scaler = torch.amp.GradScaler(device)
    evaluator = Evaluator(vd, ve, dtype)
    evaluator.start()
    waiting = False
    for step in range(args.steps):
        pick = torch.randint(0, len(d), (args.batch,), device=device)
        with torch.autocast(device, dtype=dtype):
            loss = F.mse_loss(model(d[pick]), (e[pick] - model.mean) / model.std)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if (step + 1) % args.every == 0:
            if waiting:
                plateau.step(evaluator.answers.get())
            evaluator.jobs.put(copy.deepcopy(model).eval())
            waiting = True
        if step % 50 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")
    last = evaluator.answers.get()
    evaluator.jobs.put(None)
    evaluator.join()

    with torch.no_grad(), torch.autocast(device, dtype=dtype):
        error = model(td).float() * model.std + model.mean - te
    rmse = error.pow(2).mean().sqrt().item()
    print(f"held-out rmse {rmse:.3f}")
    return {"rmse": rmse, "spread": te.std().item(), "lr": opt.param_groups[0]["lr"], "last": last}


if __name__ == "__main__":
    main()
