"""Domain-incremental classification with elastic weight consolidation.

Three sites send the same kind of sensor vectors, each with its own channel wiring. We train on them one
after the other and keep the old ones alive with a quadratic penalty.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
DIM, CLASSES, BATCH = 64, 8, 128
STEPS_PER_SITE = 60
FISHER_BATCHES = 32
EWC_LAMBDA = 1.0e6


class Site:
    """Gaussian classes, seen through a fixed permutation of the channels."""

    def __init__(self, idx):
        g = torch.Generator().manual_seed(100)
        self.centers = torch.randn(CLASSES, DIM, generator=g) * 0.9
        self.perm = torch.randperm(DIM, generator=torch.Generator().manual_seed(idx))
        self.gen = torch.Generator().manual_seed(1000 + idx)

    def batch(self, n, gen=None):
        gen = gen or self.gen
        y = torch.randint(CLASSES, (n,), generator=gen)
        x = self.centers[y] + torch.randn(n, DIM, generator=gen)
        return x[:, self.perm].to(device), y.to(device)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(DIM, 256)
        self.fc2 = nn.Linear(256, 256)
        self.out = nn.Linear(256, CLASSES)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        h = F.relu(self.fc2(h))
        return self.out(h)


class EWC:
    """Diagonal Fisher and anchor per task; the Fisher terms of all tasks are kept, so they are stored small."""

    def __init__(self, model, lam, store_dtype=torch.float16):
        self.model, self.lam, self.store_dtype = model, lam, store_dtype
        self.tasks = []

    def consolidate(self, site):
        fisher = {n: torch.zeros_like(p, dtype=self.store_dtype) for n, p in self.model.named_parameters()}
        self.model.eval()
        for _ in range(FISHER_BATCHES):
            x, y = site.batch(BATCH)
            self.model.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            for n, p in self.model.named_parameters():
                g = p.grad.to(self.store_dtype)
                fisher[n] += g * g / FISHER_BATCHES
        self.model.train()
        self.model.zero_grad()
        anchor = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.tasks.append((fisher, anchor))

    def penalty(self):
        total = torch.zeros((), device=device)
        for fisher, anchor in self.tasks:
            for n, p in self.model.named_parameters():
                total = total + (fisher[n].float() * (p - anchor[n]) ** 2).sum()
        return 0.5 * self.lam * total


@torch.no_grad()
def accuracy(model, site):
    x, y = site.batch(2000, torch.Generator().manual_seed(7))
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    sites = [Site(i) for i in range(3)]
    model = Net().to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    scaler = torch.amp.GradScaler(device)
    ewc = EWC(model, EWC_LAMBDA)

    for k, site in enumerate(sites):
        for step in range(STEPS_PER_SITE):
            x, y = site.batch(BATCH)
            opt.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            loss = loss + ewc.penalty()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(opt)
            scaler.update()
            if step % 20 == 0:
                print(f"site {k} step {step:3d} loss {loss.item():.4f}")
        ewc.consolidate(site)
        print(f"after site {k}: " + " ".join(f"{accuracy(model, s):.3f}" for s in sites[: k + 1]))

    accs = [accuracy(model, s) for s in sites]
    print(f"final mean accuracy over sites {sum(accs) / len(accs):.4f}")


if __name__ == "__main__":
    main()
