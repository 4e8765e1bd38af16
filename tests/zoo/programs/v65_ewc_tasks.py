"""Elastic weight consolidation over a sequence of two classification tasks."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class TaskStream:
    """Gaussian clusters; every task has its own centres in the same feature space."""

    def __init__(self, tasks=2, classes=8, dim=32, seed=0):
        gen = torch.Generator().manual_seed(seed)
        self.gen, self.classes, self.dim = gen, classes, dim
        self.centres = torch.randn(tasks, classes, dim, generator=gen)

    def batch(self, task, size):
        y = torch.randint(self.classes, (size,), generator=self.gen)
        x = self.centres[task, y] + 0.9 * torch.randn(size, self.dim, generator=self.gen)
        return x.to(device), y.to(device)


class Classifier(nn.Module):
    def __init__(self, dim=32, hidden=128, classes=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.body(x))


class EWC:
    def __init__(self, model, stream, task, batches=100, size=1024):
        self.anchor = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.fisher = self.estimate(model, stream, task, batches, size)

    def estimate(self, model, stream, task, batches, size):
        net = copy.deepcopy(model).half().eval()
        fisher = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
        for _ in range(batches):
            x, _ = stream.batch(task, size)
            net.zero_grad()
            logits = net(x.half()).float()
            sampled = torch.distributions.Categorical(logits=logits).sample()
            F.cross_entropy(logits, sampled).backward()
            for n, p in net.named_parameters():
                fisher[n] += p.grad.detach() ** 2 / batches
        return {n: f.float() for n, f in fisher.items()}

    def penalty(self, model):
        total = 0.0
        for n, p in model.named_parameters():
            total = total + (self.fisher[n] * (p - self.anchor[n]) ** 2).sum()
        return total


def train(model, stream, task, steps, ewc=None, strength=0.0, lr=2e-3):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for _ in range(steps):
        x, y = stream.batch(task, 128)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
            if ewc is not None:
                loss = loss + 0.5 * strength * ewc.penalty(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


@torch.no_grad()
def accuracy(model, stream, task):
    x, y = stream.batch(task, 2000)
    return (model(x).argmax(-1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    stream = TaskStream(seed=1)
    model = Classifier().to(device)
    train(model, stream, 0, 80)
    print(f"task 0 after task 0: {accuracy(model, stream, 0):.3f}")
    ewc = EWC(model, stream, 0)
    importance = sum(f.sum() for f in ewc.fisher.values()).item()
    print(f"importance {importance:.4e}")
    train(model, stream, 1, 80, ewc, strength=5e6, lr=3e-3)
    print(f"task 0 after task 1: {accuracy(model, stream, 0):.3f}")
    print(f"task 1 after task 1: {accuracy(model, stream, 1):.3f}")


if __name__ == "__main__":
    main()
