"""Domain-incremental classification of inspection images with EWC (Kirkpatrick et al. 2017).
Site A first, then site B; the importance of every weight for site A is kept next to the model."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(11)

DIM, CLASSES, BATCH = 24, 6, 64


def make_site(seed, n=1536):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(CLASSES, DIM, generator=g) * 2.0
    y = torch.randint(0, CLASSES, (n,), generator=g)
    x = centers[y] + torch.randn(n, DIM, generator=g)
    return x.to(device), y.to(device)


class Inspector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.out = nn.Linear(128, CLASSES)

    def forward(self, x):
        return self.out(self.body(x))


class Consolidation:
    """Diagonal Fisher and anchor of the finished tasks."""

    def __init__(self, model, strength):
        self.model, self.strength = model, strength
        self.anchor, self.importance = {}, {}

    def finish_task(self, x, y, batches=48):
        self.model.eval()
        self.anchor = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.importance = {n: torch.zeros_like(p, dtype=torch.float16) for n, p in self.model.named_parameters()}
        for xb, yb in zip(x.split(32)[:batches], y.split(32)):
            self.model.zero_grad()
            F.cross_entropy(self.model(xb), yb).backward()
            for n, p in self.model.named_parameters():
                self.importance[n] += p.grad.to(torch.float16).square() / batches
        self.model.zero_grad()
        self.model.train()

    def penalty(self):
        total = 0.0
        for n, p in self.model.named_parameters():
            if n in self.anchor:
                total = total + (self.importance[n].float() * (p - self.anchor[n]).square()).sum()
        return 0.5 * self.strength * total


def accuracy(model, x, y):
    with torch.no_grad(), torch.autocast(device_type=device, dtype=torch.bfloat16):
        return (model(x).argmax(-1) == y).float().mean().item()


model = Inspector().to(device)
ewc = Consolidation(model, strength=3e6)
site_a, site_b = make_site(1), make_site(2)

for name, (x, y) in (("A", site_a), ("B", site_b)):
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(170):
        idx = torch.randint(0, len(x), (BATCH,))
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            logits = model(x[idx])
            task = F.cross_entropy(logits, y[idx])
        loss = task + ewc.penalty()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if step % 34 == 0:
            print(f"site {name} step {step:3d} task {task.item():.4f} total {loss.item():.4f}")
    print(f"after {name}: acc A {accuracy(model, *site_a):.3f}  acc B {accuracy(model, *site_b):.3f}")
    if name == "A":
        ewc.finish_task(x, y)
