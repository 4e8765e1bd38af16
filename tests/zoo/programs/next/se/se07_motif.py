"""Binding strength of a protein to DNA from one-hot sequences."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(29)
device = "cuda" if torch.cuda.is_available() else "cpu"
BASES, LENGTH, MOTIF, STEPS, BATCH = 4, 32, 8, 260, 32
AMP_DTYPE = torch.float16

motif = torch.randint(0, BASES, (2, MOTIF))


def sequences(count):
    """Sequences, some with parts of the two motifs, and their binding score."""
    bases = torch.randint(0, BASES, (count, LENGTH))
    score = torch.zeros(count)
    for k in range(2):
        start = torch.randint(0, LENGTH - MOTIF, (count,))
        keep = torch.rand(count, MOTIF) < torch.rand(count, 1)
        for j in range(MOTIF):
            rows = keep[:, j].nonzero().squeeze(-1)
            bases[rows, start[rows] + j] = motif[k, j]
        score = score + keep.float().mean(-1) ** 2
    return F.one_hot(bases, BASES).float().transpose(1, 2), score - 0.7


class BindNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.scan = nn.Conv1d(BASES, width, MOTIF, padding=MOTIF // 2)
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = F.relu(self.mix(F.relu(self.scan(x))))
        return self.out(x.amax(-1)).squeeze(-1)


class DynamicLossScale:
    """Apex-like scaling, kept on the device so that no step waits for the host."""

    def __init__(self, start=2.0**13, growth_interval=20):
        self.scale = torch.full((), start, device=device, dtype=AMP_DTYPE)
        self.growth_interval = growth_interval
        self.since = 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        torch._foreach_mul_(grads, self.scale.float().reciprocal())
        if all(bool(torch.isfinite(g).all()) for g in grads):
            optimizer.step()
            self.since += 1
            if self.since == self.growth_interval:
                self.scale, self.since = self.scale * 2.0, 0
        else:
            self.scale, self.since = self.scale * 0.5, 0


model = BindNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = DynamicLossScale()
train_x, train_y = (v.to(device) for v in sequences(2048))
test_x, test_y = (v.to(device) for v in sequences(1536))

for step in range(STEPS):
    pick = torch.randint(0, len(train_x), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=AMP_DTYPE):
        score = model(train_x[pick])
        loss = F.mse_loss(score, train_y[pick])
    optimizer.zero_grad()
    scaler.backward(loss)
    scaler.step(optimizer)
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")

with torch.no_grad(), torch.autocast("cuda", dtype=AMP_DTYPE):
    error = (model(test_x).float() - test_y).pow(2).mean().sqrt()
print(f"metric {error.item():.4f}")
