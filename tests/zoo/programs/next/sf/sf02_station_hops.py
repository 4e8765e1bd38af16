"""Next station of a traveller from the last three; validation runs in a background thread and steers the learning rate."""
import copy
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"

STATIONS, CONTEXT, EPOCHS, STEPS, BATCH = 240, 3, 75, 2, 160


def make_trips(n, where, lines):
    """Trips of four stops: the next stop is near to where the last three stops head."""
    at = torch.randint(STATIONS, (n,))
    seen = [at]
    for _ in range(CONTEXT):
        ahead = where[at] + 0.6 * (where[at] - where[seen[-2]] if len(seen) > 1 else 0.0)
        logits = 0.8 * ahead @ where.T + lines[at]
        at = torch.distributions.Categorical(logits=logits).sample()
        seen.append(at)
    return torch.stack(seen[:CONTEXT], 1).to(device), seen[CONTEXT].to(device)


class NextStop(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.stop = nn.Embedding(STATIONS, dim)
        self.mix = nn.Linear(CONTEXT * dim, 96)
        self.out = nn.Linear(96, STATIONS)
        nn.init.normal_(self.stop.weight, std=0.1)

    def forward(self, seen):
        return self.out(F.gelu(self.mix(self.stop(seen).flatten(1))))


@torch.no_grad()
def validate(snapshot, seen, target):
    """Mean loss of a frozen copy; runs beside the training."""
    losses = []
    for x, y in zip(seen.split(200), target.split(200)):
        losses.append(F.cross_entropy(snapshot(x), y))
    return torch.stack(losses).mean().item()


where, lines = torch.randn(STATIONS, 3), 0.5 * torch.randn(STATIONS, STATIONS)
train_x, train_y = make_trips(16000, where, lines)
val_x, val_y = make_trips(400, where, lines)
test_x, test_y = make_trips(3000, where, lines)

model = NextStop().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.012, momentum=0.9, nesterov=True)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.1, patience=1)
pool = ThreadPoolExecutor(max_workers=1)
pending = None

for epoch in range(EPOCHS):
    model.train()
    for _ in range(STEPS):
        pick = torch.randint(len(train_x), (BATCH,), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(train_x[pick])
            loss = F.cross_entropy(logits, train_y[pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if pending is not None:  # the epoch before has been judged meanwhile
        sched.step(pending.result())
    snapshot = copy.deepcopy(model).to(torch.bfloat16).eval()
    pending = pool.submit(validate, snapshot, val_x, val_y)
pool.shutdown()

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    nll = F.cross_entropy(model(test_x), test_y)
print(f"lr at the end {opt.param_groups[0]['lr']:.2e}")
print(f"metric {nll.item():.4f}")
