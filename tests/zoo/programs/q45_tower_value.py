"""Policy and value of a dice tower game by self-play tables, trained with a loss scale of our own.

Each turn a player adds a block or stops; the tower falls with a chance that grows with its height and tilt. The network
learns the best move and the expected score (over 100) from an exact search.
"""

import torch
from torch import nn

DEV = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def solve(levels=24, tilts=15):
    """Exact values: `value[h, t, b]` for height h, tilt t and bonus b, and the worth of both moves."""
    bonus = torch.arange(5).float()
    fall = (0.004 * torch.arange(levels)[:, None] + 0.02 * (torch.arange(tilts) - tilts // 2).abs()).clamp(0, 0.9)
    value = torch.zeros(levels, tilts, 5)
    moves = torch.zeros(levels, tilts, 5, 2)
    for h in reversed(range(levels)):
        stop = 2.0 * h + bonus * (h / 6) - 0.02 * h * h
        if h == levels - 1:
            value[h] = stop
            moves[h, ..., 0], moves[h, ..., 1] = stop, stop - 5
            continue
        up, down = value[h + 1].roll(-1, 0), value[h + 1].roll(1, 0)
        up[-1], down[0] = value[h + 1][-1], value[h + 1][0]
        add = (1 - fall[h])[:, None] * (0.5 * up + 0.5 * down) + fall[h][:, None] * 0.3 * h
        moves[h, ..., 0], moves[h, ..., 1] = stop.expand(tilts, 5), add
        value[h] = torch.maximum(moves[h, ..., 0], moves[h, ..., 1])
    return value / 100, moves / 100


class Scale:
    """A loss scale that halves when gradients overflow and doubles after 80 good steps."""

    def __init__(self):
        self.value, self.good, self.skipped = 2.0**32, 0, 0

    def apply(self, loss):
        return loss.float() * self.value

    def step(self, params, optimizer):
        params = [p for p in params if p.grad is not None]
        norm = torch.stack([p.grad.double().norm() for p in params]).norm()
        if not torch.isfinite(norm):
            self.value, self.good, self.skipped = max(self.value / 2, 1.0), 0, self.skipped + 1
            return
        for p in params:
            p.grad.mul_(1 / self.value)
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        self.good += 1
        if self.good == 80:
            self.value, self.good = min(self.value * 2, 2.0**32), 0


class Net(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(44, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.policy, self.value = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return self.policy(h), torch.sigmoid(self.value(h)).squeeze(1)


value, moves = solve()
h, t, b = (axis.flatten() for axis in torch.meshgrid(torch.arange(24), torch.arange(15), torch.arange(5), indexing="ij"))
table = torch.cat([nn.functional.one_hot(h, 24), nn.functional.one_hot(t, 15), nn.functional.one_hot(b, 5)], 1).float().to(DEV)
worth, score = moves.flatten(0, 2).to(DEV), value.flatten().to(DEV)
held = torch.rand(len(table)) < 0.25
train = torch.nonzero(~held).flatten().to(DEV)
net, scale = Net().to(DEV), Scale()
params = list(net.parameters())
opt = torch.optim.AdamW(params, lr=3e-3, weight_decay=1e-3)
steps = 1200
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=3e-5)
for step in range(steps):
    i = train[torch.randint(0, len(train), (128,), device=DEV)]
    noisy = worth[i] + 0.01 * torch.randn(128, 2, device=DEV)
    with torch.autocast("cuda", dtype=torch.float16):
        logits, guess = net(table[i])
        loss = nn.functional.cross_entropy(logits, (noisy / 0.02).softmax(1)) + 20 * nn.functional.mse_loss(guess, score[i])
    opt.zero_grad()
    scale.apply(loss).backward()
    scale.step(params, opt)
    sched.step()
    if step % 200 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scale.value:.0f} skipped {scale.skipped}")

held = held.to(DEV)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    logits, guess = net(table[held])
regret = worth[held].amax(1) - worth[held].gather(1, logits.argmax(1, keepdim=True)).squeeze(1)
print(f"regret {regret.mean().item() * 100:.4f} points")
print(f"METRIC {(guess.float() - score[held]).abs().mean().item() * 100:.4f}")
