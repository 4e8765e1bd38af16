"""Online EWC on a stream of permuted classification tasks (domain-incremental, one shared head)."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
DIM, CLASSES, TASKS, HIDDEN = 64, 10, 3, 128
LAMBDA = 3e6

centres = torch.randn(CLASSES, 3, DIM) * 0.55


def draw(n):
    y = torch.randint(CLASSES, (n,))
    mode = torch.randint(3, (n,))
    return centres[y, mode] + 0.5 * torch.randn(n, DIM), y


train_x, train_y = draw(4000)
test_x, test_y = draw(1500)
perms = [torch.arange(DIM)] + [torch.randperm(DIM) for _ in range(TASKS - 1)]

net = nn.Sequential(
    nn.Linear(DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
).to(device)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)


def logits(x):
    with torch.autocast("cuda", dtype=torch.float16):
        return net(x)


def accuracy(task):
    with torch.no_grad():
        out = logits(test_x[:, perms[task]].to(device))
    return (out.argmax(1).cpu() == test_y).float().mean().item()


class EWC:
    """Diagonal Fisher and anchor weights of the tasks seen so far."""

    def __init__(self, model, decay=1.0):
        self.model, self.decay = model, decay
        self.fisher = {n: torch.zeros_like(p, dtype=torch.float16) for n, p in model.named_parameters()}
        self.anchor = {}

    def consolidate(self, x, y, batch=50, batches=40):
        total = {n: f * self.decay for n, f in self.fisher.items()}
        for i in range(batches):
            rows = slice(i * batch, (i + 1) * batch)
            self.model.zero_grad()
            scaler.scale(F.cross_entropy(logits(x[rows]), y[rows])).backward()
            for n, p in self.model.named_parameters():
                total[n] += (p.grad / scaler.get_scale()).square() / len(x)
        self.fisher = total
        self.anchor = {n: p.detach().clone() for n, p in self.model.named_parameters()}

    def penalty(self):
        if not self.anchor:
            return 0.0
        terms = [(self.fisher[n] * (p - self.anchor[n]).square()).sum() for n, p in self.model.named_parameters()]
        return 0.5 * LAMBDA * torch.stack(terms).sum()


ewc = EWC(net)
for task in range(TASKS):
    x, y = train_x[:, perms[task]].to(device), train_y.to(device)
    opt = torch.optim.Adam(net.parameters(), lr=5e-4)
    for step in range(400):
        pick = torch.randint(len(x), (64,))
        loss = F.cross_entropy(logits(x[pick]), y[pick]) + ewc.penalty()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    ewc.consolidate(x, y)
    print(f"task {task} loss {loss.item():.3f} acc", " ".join(f"{accuracy(t):.3f}" for t in range(task + 1)))

print(f"METRIC {sum(accuracy(t) for t in range(TASKS)) / TASKS:.4f}")
