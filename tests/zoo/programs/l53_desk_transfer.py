"""Moves a model of daily bond returns from one market to the next and holds what matters for the first (EWC)."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16
torch.manual_seed(8)

FACTORS, HELD = 16, 3e11
load_a, load_b = (torch.randn(FACTORS, device=device) for _ in range(2))


def market(n, load, columns):
    """Return factors, of which each market moves its own part, and returns of about one per cent a day."""
    x = torch.zeros(n, FACTORS, device=device)
    x[:, columns] = torch.randn(n, len(columns), device=device)
    return x, 0.01 * (torch.tanh(x @ load * 0.5) + 0.3 * torch.randn(n, device=device)).unsqueeze(1)


first, second = list(range(0, 10)), list(range(7, 16))
a_x, a_y = market(6000, load_a, first)
b_x, b_y = market(6000, load_b, second)


class Returns(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FACTORS, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, x):
        return 0.01 * self.net(x).float()  # the network speaks of per cents


model = Returns().to(device)


def train(x, y, steps, penalty=None):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(steps):
        index = torch.randint(0, len(x), (256,), device=device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x[index]), y[index]) * 1e4
        if penalty is not None:
            loss = loss + penalty()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.5f}")


def importance(x, y, batches=50, scale=4096.0):
    """Return the mean square of each weight's gradient."""
    table, handles = {}, []
    for name, p in model.named_parameters():
        table[name] = torch.zeros_like(p, dtype=HALF)

        def hook(grad, name=name):
            table[name] += ((grad / scale) ** 2 / batches).to(HALF)

        handles.append(p.register_hook(hook))
    for _ in range(batches):
        index = torch.randint(0, len(x), (16,), device=device)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x[index]), y[index])
        model.zero_grad(set_to_none=True)
        (loss * scale).backward()
    for handle in handles:
        handle.remove()
    return table


def error(x, y):
    with torch.no_grad():
        return (F.mse_loss(model(x), y) / y.var()).item()


train(a_x, a_y, 400)
before = error(a_x, a_y)
table = importance(a_x, a_y)
anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
train(
    b_x,
    b_y,
    300,
    lambda: HELD * sum((table[n].float() * (p - anchor[n]) ** 2).sum() for n, p in model.named_parameters()),
)
print(f"first market: {before:.3f} before, {error(a_x, a_y):.3f} after; second {error(b_x, b_y):.3f}")
print(f"RESULT {error(a_x, a_y):.4f}")
