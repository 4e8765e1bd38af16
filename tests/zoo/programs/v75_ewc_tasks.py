"""Elastic weight consolidation over two tasks: the second one is learnt without losing the first."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"

FEATURES, CLASSES = 24, 8


class Classifier(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.trunk(x))


class Task:
    """Gaussian classes; each task sees the features in an order of its own."""

    def __init__(self, centres, generator):
        self.centres, self.generator = centres, generator
        self.order = torch.randperm(FEATURES, generator=generator)

    def batch(self, n=128):
        y = torch.randint(0, CLASSES, (n,), generator=self.generator)
        x = self.centres[y] + torch.randn(n, FEATURES, generator=self.generator)
        return x[:, self.order].to(device), y.to(device)


class EWC:
    def __init__(self, model, task, strength, batches=128):
        self.strength = strength
        self.anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.fisher = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        frozen = copy.deepcopy(model).half().eval()
        names, params = zip(*frozen.named_parameters())
        for _ in range(batches):
            x, y = task.batch()
            loss = F.cross_entropy(frozen(x.to(params[0].dtype)).float(), y)
            for name, grad in zip(names, torch.autograd.grad(loss, params)):
                self.fisher[name] += grad.pow(2) / batches

    def penalty(self, model):
        total = 0.0
        for name, p in model.named_parameters():
            total = total + (self.fisher[name] * (p - self.anchor[name]).pow(2)).sum()
        return 0.5 * self.strength * total


def train(model, task, steps, ewc=None, lr=8e-3):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    for _ in range(steps):
        x, y = task.batch()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        if ewc is not None:
            loss = loss + ewc.penalty(model)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


@torch.no_grad()
def accuracy(model, task):
    x, y = task.batch(2000)
    with torch.autocast("cuda", dtype=torch.float16):
        return (model(x).argmax(-1) == y).float().mean().item()


def main():
    torch.manual_seed(5)
    generator = torch.Generator()
    generator.manual_seed(6)
    centres = 1.8 * torch.randn(CLASSES, FEATURES, generator=generator)
    first, second = Task(centres, generator), Task(centres, generator)
    model = Classifier().to(device)

    train(model, first, 80)
    print(f"first task alone: {accuracy(model, first):.4f}")
    ewc = EWC(model, first, strength=1e7)
    loss = train(model, second, 60, ewc)
    print(f"second task: loss {loss:.4f}, accuracy {accuracy(model, second):.4f}")
    print(f"first task afterwards: {accuracy(model, first):.4f}")
    return model, ewc


if __name__ == "__main__":
    main()
